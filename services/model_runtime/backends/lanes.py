"""An `mlp` between fixed memory: for a row count every buffer and view is made once, so that a
forward is two torch calls a layer and allocates nothing.

`addmm` with a transposed view of the weights is what `linear` calls for two dimensions and a bias:
the same kernel on the same memory, so the same bits. No tensor here requires a gradient, so there
is nothing that inference mode would leave out.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from contracts.pack import Manifest, TensorContract
from contracts.types import UNSET
from services.model_runtime.backends.base import Lane
from services.model_runtime.config import lane_rows_max, lane_weights_bytes_max

Layer = tuple[Tensor, Tensor]
"""(bias, transposed weights)."""
Step = tuple[Tensor, Tensor, Tensor, Tensor]
"""(bias as often as there are rows, input, transposed weights, output)."""


class Lanes:
    """The lanes of one network. They share one buffer a layer, so one runs at a time."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        widths = [layers[0][1].shape[0], *(weights.shape[1] for _, weights in layers)]
        self._buffers = [torch.zeros(lane_rows_max, width) for width in widths]

    @classmethod
    def of(cls, manifest: Manifest, tensors: Mapping[str, Tensor]) -> "Lanes | None":
        """The lanes of a pack whose tensors fit its architecture; None when it is not an `mlp` in
        FP32 from one matrix to one matrix, or so large that a lane would save nothing."""
        contract = manifest.contract
        if manifest.architecture.name != "mlp" or contract.view is not UNSET:
            return None
        if sum(tensor.nbytes for tensor in tensors.values()) > lane_weights_bytes_max:
            return None
        layers = [
            (tensors[f"layers.{layer}.bias"], tensors[f"layers.{layer}.weight"].t())
            for layer in range(len(tensors) // 2)
        ]
        first, last = layers[0][1].shape[0], layers[-1][1].shape[1]
        if (
            any(tensor.dtype != torch.float32 for tensor in tensors.values())
            or not _is_matrix(contract.inputs, first)
            or not _is_matrix(contract.outputs, last)
        ):
            return None
        return cls(layers)

    def lane(self, rows: int) -> Lane | None:
        """The lane of this many rows; None from more than `lane_rows_max`."""
        if not 1 <= rows <= lane_rows_max:
            return None
        views = [buffer[:rows] for buffer in self._buffers]
        steps = [
            (bias.expand(rows, -1), x, weights, y)
            for (bias, weights), (x, y) in zip(self._layers, pairwise(views), strict=True)
        ]
        output = views[-1].numpy()
        return Lane(
            input=views[0].numpy().data.cast("B"),
            output=output.data.cast("B"),
            numbers=output.reshape(-1),
            forward=_forward(steps),
        )


def _forward(steps: Sequence[Step]) -> Callable[[], None]:
    *hidden, (last_bias, last_x, last_weights, y) = steps
    addmm, relu_ = torch.addmm, torch.relu_

    def run() -> None:
        for bias, x, weights, activations in hidden:
            addmm(bias, x, weights, out=activations)
            relu_(activations)
        addmm(last_bias, last_x, last_weights, out=y)

    return run


def _is_matrix(tensors: Sequence[TensorContract], width: int) -> bool:
    return [(t.datatype, t.shape) for t in tensors] == [("FP32", [-1, width])]
