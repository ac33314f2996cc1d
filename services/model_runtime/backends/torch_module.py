"""torch: a network of the allow-list over mapped weights, with preallocated input buffers.

Numerics are pinned (M14): float32 matmul precision "highest", deterministic kernels, inference
mode. The same rows give the same numbers within 1e-5 whatever batch they travel in.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch.utils import deterministic

from contracts.errors import MeshError
from contracts.pack import Manifest
from services.model_runtime.backends.architectures import Network
from services.model_runtime.backends.base import Array, Lane
from services.model_runtime.backends.lanes import Lanes
from services.model_runtime.backends.networks import build
from services.model_runtime.backends.torch_memory import (
    InputBuffer,
    as_tensor,
    fit_cost,
    is_out_of_memory,
)
from services.model_runtime.encoding import input_shapes


def pin_numerics(threads: int) -> None:
    """Settings of the calling thread and process; a computing thread calls it first."""
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    # The same switch as use_deterministic_algorithms(True), which imports 800 modules (2.5 s).
    torch.set_deterministic_debug_mode("error")
    # Every output is written whole. The module replaces its class, which the types do not show.
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


class TorchModule:
    """A `Backend`."""

    def __init__(
        self, network: Network, buffers: list[InputBuffer], lanes: Lanes | None = None
    ) -> None:
        self._network: Network | None = network
        self._buffers = buffers
        self._lanes = lanes
        self._batch_s = self._row_s = math.inf

    @classmethod
    def load(
        cls, manifest: Manifest, tensors: Mapping[str, Array], files: Mapping[str, bytes]
    ) -> "TorchModule":
        """Build the network over the arrays without copying them; it needs no files."""
        bits = {tensor.name for tensor in manifest.tensors if tensor.datatype == "BF16"}
        weights = {name: as_tensor(array, name in bits) for name, array in tensors.items()}
        try:
            network = build(manifest.architecture, weights)
        except ValueError as error:
            raise MeshError("PACK_INVALID", str(error)) from error
        buffers = [InputBuffer(contract) for contract in input_shapes(manifest)]
        return cls(network, buffers, Lanes.of(manifest, weights))

    def warm(self) -> None:
        """See `Backend.warm`."""
        self._batch_s, self._row_s = fit_cost(self._run_zeros)

    def recall(self, batch_s: float, row_s: float) -> None:
        """See `costs.Recalls`."""
        self._batch_s, self._row_s = batch_s, row_s

    def forward(self, inputs: Sequence[Array], rows: int) -> list[Array]:
        """See `Backend.forward`."""
        assert self._network is not None, "closed"
        try:
            with torch.inference_mode():
                tensors = [
                    buffer.fill(array, rows)
                    for buffer, array in zip(self._buffers, inputs, strict=True)
                ]
                return [output.numpy() for output in self._network(*tensors)]
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise MeshError("MEMORY_EXHAUSTED", f"a forward of {rows} rows") from error
            raise

    def lane(self, rows: int) -> Lane | None:
        """See `Backend.lane`."""
        return None if self._lanes is None else self._lanes.lane(rows)

    def cost(self, rows: int) -> float:
        """See `Backend.cost`."""
        return self._batch_s + rows * self._row_s

    @property
    def waits(self) -> bool:
        """See `Backend.waits`."""
        return self._network is not None and self._network.waits

    def close(self) -> None:
        """Drop the network, and with it the last references to the maps."""
        self._network = None
        self._buffers = []
        self._lanes = None

    def _run_zeros(self, rows: int) -> None:
        self.forward([buffer.zeros(rows) for buffer in self._buffers], rows)
