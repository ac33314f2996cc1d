"""A small text encoder over token ids: embedding, attention layers, mean pooling, a linear head.

What is masked out has no part in anything: no id attends to it, positions count the ids before,
and the mean is over the others. So padding, on either side, changes an answer only by the order in
which floating-point sums are taken.
"""

import torch
from torch import Tensor
from torch.nn import functional

from services.model_runtime.backends.architectures import Configuration, Shapes, Tensors

_slowest = 1e4
"""The longest wave of a position's code is so many times the shortest. Source: Vaswani et al.,
"Attention is all you need", 2017, 3.5."""


class Encoder:
    """`vocabulary` V, `width` W (even, a multiple of `heads`), `layers`, `hidden` H, `outputs` K.

    input_ids and attention_mask INT64 or INT32 [n, l] → y FP32 [n, K]. Layers normalise first
    (Xiong et al., "On layer normalization in the Transformer architecture", 2020).
    """

    waits = False

    def __init__(self, configuration: Configuration, tensors: Tensors) -> None:
        self._heads = _integer(configuration, "heads")
        width = _integer(configuration, "width")
        layers = _integer(configuration, "layers")
        if width % 2 or width % self._heads:
            raise ValueError(f"width {width} is not even, or no multiple of {self._heads} heads")
        self._width = width
        self._tensors = tensors
        self._layers = [f"layers.{layer}" for layer in range(layers)]
        self._frequencies = _slowest ** -(torch.arange(0, width, 2) / width)  # [W / 2]

    @staticmethod
    def shapes(configuration: Configuration) -> Shapes:
        """Tensors by name; weights are [outputs, inputs]."""
        vocabulary = _integer(configuration, "vocabulary")
        width = _integer(configuration, "width")
        layers = _integer(configuration, "layers")
        hidden = _integer(configuration, "hidden")
        outputs = _integer(configuration, "outputs")
        shapes: Shapes = {"embedding.weight": [vocabulary, width]}
        for layer in range(layers):
            for name, (rows, columns) in {
                "attention": (3 * width, width),
                "mix": (width, width),
                "hidden": (hidden, width),
                "back": (width, hidden),
            }.items():
                shapes[f"layers.{layer}.{name}.weight"] = [rows, columns]
                shapes[f"layers.{layer}.{name}.bias"] = [rows]
        return {**shapes, "head.weight": [outputs, width], "head.bias": [outputs]}

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Ids and mask in, outputs out."""
        ids, mask = inputs
        x = functional.embedding(ids, self._tensors["embedding.weight"]) + self._places(mask)
        allowed = mask.bool()[:, None, None, :]  # [n, heads, queries, keys]
        for layer in self._layers:
            x = x + self._attend(layer, self._norm(x), allowed)
            hidden = functional.gelu(self._linear(f"{layer}.hidden", self._norm(x)))
            x = x + self._linear(f"{layer}.back", hidden)
        counts = mask.to(x.dtype)[:, :, None]
        pooled = (self._norm(x) * counts).sum(1) / counts.sum(1)  # [n, W]
        return (self._linear("head", pooled),)

    def _places(self, mask: Tensor) -> Tensor:
        """The code of each id's position among those that count."""
        places = (mask.cumsum(1) - 1).clamp(min=0)
        angles = places[:, :, None] * self._frequencies  # [n, l, W / 2]
        return torch.cat((angles.sin(), angles.cos()), dim=2)

    def _attend(self, layer: str, x: Tensor, allowed: Tensor) -> Tensor:
        rows, length, width = x.shape
        joined = self._linear(f"{layer}.attention", x)
        heads = joined.view(rows, length, 3, self._heads, width // self._heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)  # each [n, heads, l, W / heads]
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        return self._linear(f"{layer}.mix", found.transpose(1, 2).reshape(rows, length, width))

    def _norm(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, (self._width,))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"])


def _integer(configuration: Configuration, key: str) -> int:
    value = configuration.get(key)
    if type(value) is not int or value < 1:
        raise ValueError(f"configuration {key!r} is {value!r}, a positive integer is expected")
    return value
