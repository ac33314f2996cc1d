"""The allow-list: our own small networks, built from a configuration and tensors, never from code
in a pack. The same forward serves and is trained.

Each states the tensors it takes (`shapes`) and computes with plain torch functions; a module tree
would cost more than the arithmetic of a network this small.
"""

import time
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from contracts.pack import Architecture
from contracts.types import Scalar

Configuration = Mapping[str, Scalar | list[int]]
Tensors = Mapping[str, Tensor]
Shapes = dict[str, list[int]]


class Network(Protocol):
    """One architecture with its tensors. `waits`: its forward sleeps, so never on the loop."""

    waits: bool

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Inputs with n rows → outputs with n rows, in the contract's order."""
        ...


class Mlp:
    """`widths` [w0 … wk]: linear layers with a ReLU between them. x [n, w0] → y [n, wk]."""

    waits = False

    def __init__(self, configuration: Configuration, tensors: Tensors) -> None:
        count = len(_integers(configuration, "widths")) - 1
        self._layers = _layers(tensors, count)

    @staticmethod
    def shapes(configuration: Configuration) -> Shapes:
        """Tensors by name; weights are [outputs, inputs]."""
        return _layer_shapes(_integers(configuration, "widths"))

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """One tensor in, one out."""
        (x,) = inputs
        return (_run(self._layers, x),)  # [n, wk]


class Tabular:
    """Standardised numbers and categories → logits.

    `numbers` D, `cardinalities` [c0 … ck] (index 0 of each is "unknown"), `widths` [h0 … hm];
    numbers are cut to ± `clip`, so that one wild value cannot decide alone.
    The first layer adds to a linear map of the numbers one learned row of width h0 per category:
    all embeddings lie in one table [Σc, h0], category i's after those before it. x [n, D] FP32,
    categories [n, k] INT64 → logits [n, hm].
    """

    waits = False

    def __init__(self, configuration: Configuration, tensors: Tensors) -> None:
        widths = _integers(configuration, "widths")
        cardinalities = _integers(configuration, "cardinalities")
        self._clip = _number(configuration, "clip")
        self._weight, self._bias = tensors["numbers.weight"], tensors["numbers.bias"]
        self._table = tensors["categories.weight"]
        self._offsets = torch.tensor([0, *accumulate(cardinalities)][:-1])
        self._layers = _layers(tensors, len(widths) - 1)

    @staticmethod
    def shapes(configuration: Configuration) -> Shapes:
        """Tensors by name; weights are [outputs, inputs]."""
        widths = _integers(configuration, "widths")
        (numbers,) = _integers(configuration, "numbers")
        return {
            "numbers.weight": [widths[0], numbers],
            "numbers.bias": [widths[0]],
            "categories.weight": [sum(_integers(configuration, "cardinalities")), widths[0]],
            **_layer_shapes(widths),
        }

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Numbers and categories in, logits out."""
        return (self.logits(*inputs, dropout=0.0),)

    def logits(self, numbers: Tensor, categories: Tensor, *, dropout: float) -> Tensor:
        """[n, hm]; in training a share `dropout` of each hidden layer is silenced."""
        numbers = numbers.clamp(-self._clip, self._clip)
        rows = functional.embedding_bag(categories + self._offsets, self._table, mode="sum")
        hidden = functional.linear(numbers, self._weight, self._bias) + rows  # [n, h0]
        return _run(self._layers, torch.relu(hidden), dropout)


class Sleepy:
    """Sleeps `batch_ms` + rows · `row_ms`, then multiplies by `factor`: a model of known cost."""

    waits = True

    def __init__(self, configuration: Configuration, tensors: Tensors) -> None:
        self._batch_s = _number(configuration, "batch_ms") / 1e3
        self._row_s = _number(configuration, "row_ms") / 1e3
        self._factor = _number(configuration, "factor")

    @staticmethod
    def shapes(configuration: Configuration) -> Shapes:
        """It has no tensors."""
        return {}

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """One tensor in, its multiple out."""
        (x,) = inputs
        time.sleep(self._batch_s + self._row_s * len(x))
        return (x * self._factor,)


ARCHITECTURES: Mapping[str, type[Mlp] | type[Tabular] | type[Sleepy]] = {
    "mlp": Mlp,
    "tabular": Tabular,
    "sleepy": Sleepy,
}


def build(architecture: Architecture, tensors: Tensors) -> Network:
    """The network of a pack. Raises ValueError naming the architecture, key or tensor that does
    not fit."""
    kind = ARCHITECTURES.get(architecture.name)
    if kind is None:
        listed = ", ".join(ARCHITECTURES)
        raise ValueError(f"architecture {architecture.name!r} is not in the allow-list: {listed}")
    expected = kind.shapes(architecture.configuration)
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise ValueError(
                f"tensor {name}: {architecture.name} expects {expected.get(name)},"
                f" the pack has {found.get(name)}"
            )
    return kind(architecture.configuration, tensors)


def _run(layers: Sequence[tuple[Tensor, Tensor]], x: Tensor, dropout: float = 0.0) -> Tensor:
    """`x` are activations; the last layer has none."""
    for weight, bias in layers[:-1]:
        x = torch.relu(functional.linear(_drop(x, dropout), weight, bias))
    weight, bias = layers[-1]
    return functional.linear(_drop(x, dropout), weight, bias)


def _drop(x: Tensor, share: float) -> Tensor:
    return functional.dropout(x, share) if share else x


def _layers(tensors: Tensors, count: int) -> list[tuple[Tensor, Tensor]]:
    return [
        (tensors[f"layers.{layer}.weight"], tensors[f"layers.{layer}.bias"])
        for layer in range(count)
    ]


def _layer_shapes(widths: Sequence[int]) -> Shapes:
    shapes: Shapes = {}
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        shapes[f"layers.{layer}.weight"] = [outputs, inputs]
        shapes[f"layers.{layer}.bias"] = [outputs]
    return shapes


def _integers(configuration: Configuration, key: str) -> list[int]:
    value = configuration.get(key)
    values = value if isinstance(value, list) else [value]
    if not values or not all(type(item) is int and item > 0 for item in values):
        raise ValueError(f"configuration {key!r} is {value!r}, positive integers are expected")
    return [item for item in values if isinstance(item, int)]


def _number(configuration: Configuration, key: str) -> float:
    value = configuration.get(key)
    if not isinstance(value, int | float) or value < 0:
        raise ValueError(f"configuration {key!r} is {value!r}, a number ≥ 0 is expected")
    return float(value)
