"""torch: a network of the allow-list over mapped weights, with preallocated input buffers.

Numerics are pinned (M14): float32 matmul precision "highest", deterministic kernels, inference
mode. The same rows give the same numbers within 1e-5 whatever batch they travel in.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch.utils import deterministic, dlpack

from contracts.errors import MeshError
from contracts.pack import Manifest, TensorContract
from services.model_runtime.backends.architectures import Network, build
from services.model_runtime.backends.base import Array, Lane
from services.model_runtime.backends.lanes import Lanes
from services.model_runtime.config import (
    buffer_rows,
    warm_rows,
    warm_runs_max,
    warm_seconds_max,
)
from services.model_runtime.encoding import input_shapes
from services.model_runtime.mapping import NUMPY_TYPES
from shared.clock import SYSTEM

_OUT_OF_MEMORY = re.compile(r"not enough memory|can't allocate memory|out of memory", re.IGNORECASE)
"""How torch's allocators put it; they raise RuntimeError and subclasses."""


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
        self, network: Network, buffers: list["_Buffer"], lanes: Lanes | None = None
    ) -> None:
        self._network: Network | None = network
        self._buffers = buffers
        self._lanes = lanes
        self._batch_s = self._row_s = math.inf

    @classmethod
    def load(cls, manifest: Manifest, tensors: Mapping[str, Array]) -> "TorchModule":
        """Build the network over the arrays without copying them."""
        bits = {tensor.name for tensor in manifest.tensors if tensor.datatype == "BF16"}
        weights = {name: _tensor(array, name in bits) for name, array in tensors.items()}
        try:
            network = build(manifest.architecture, weights)
        except ValueError as error:
            raise MeshError("PACK_INVALID", str(error)) from error
        buffers = [_Buffer(contract) for contract in input_shapes(manifest)]
        return cls(network, buffers, Lanes.of(manifest, weights))

    def warm(self) -> None:
        """Run one row and `warm_rows` rows, and fit the cost through the fastest of each."""
        one_s, many_s = (self._fastest(rows) for rows in (1, warm_rows))
        self._row_s = max(0.0, (many_s - one_s) / (warm_rows - 1))
        self._batch_s = one_s - self._row_s

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
            if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):
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

    def _fastest(self, rows: int) -> float:
        inputs = [buffer.zeros(rows) for buffer in self._buffers]
        return _fastest(lambda: self.forward(inputs, rows))


class _Buffer:
    """Memory for one input, reused for every batch up to `buffer_rows` rows: a copy also aligns
    what arrived at any offset of a frame."""

    def __init__(self, contract: TensorContract) -> None:
        if contract.datatype in ("BF16", "BYTES"):
            raise MeshError(
                "PACK_INVALID", f"input {contract.name}: {contract.datatype} is not supported"
            )
        self._shape = contract.shape[1:]
        self._dtype = np.dtype(NUMPY_TYPES[contract.datatype]).newbyteorder("=")
        self._whole = self.zeros(buffer_rows)
        self._views: dict[int, tuple[Array, torch.Tensor]] = {}

    def zeros(self, rows: int) -> Array:
        """Fresh memory for this many rows."""
        return np.zeros((rows, *self._shape), dtype=self._dtype)

    def fill(self, array: Array, rows: int) -> torch.Tensor:
        """The array's rows as a tensor, valid until the next call."""
        if rows > buffer_rows:
            return torch.from_numpy(np.array(array, dtype=self._dtype))
        view = self._views.get(rows)
        if view is None:
            part = self._whole[:rows]
            view = self._views[rows] = (part, torch.from_numpy(part))
        np.copyto(view[0], array)
        return view[1]


def _tensor(array: Array, is_bfloat16: bool) -> torch.Tensor:
    """A tensor over the array's memory. DLPack, because it takes read-only memory as it is."""
    tensor = dlpack.from_dlpack(array)
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor


def _fastest(run: Callable[[], object]) -> float:
    """The fastest run: on a busy machine every other figure measures the neighbours."""
    best_s, spent_s = math.inf, 0.0
    for _ in range(warm_runs_max):
        started_s = SYSTEM.monotonic()
        run()
        taken_s = SYSTEM.monotonic() - started_s
        best_s, spent_s = min(best_s, taken_s), spent_s + taken_s
        if spent_s > warm_seconds_max:
            break
    return best_s
