"""What every backend over torch shares: tensors over mapped memory, input buffers, running out of
memory told from other failures, and the cost of a batch measured."""

import math
import re
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch.utils import dlpack

from contracts.errors import MeshError
from contracts.pack import TOKEN_INPUTS, TensorContract
from services.model_runtime.backends.base import Array
from services.model_runtime.config import (
    buffer_rows,
    warm_rows,
    warm_runs_max,
    warm_seconds_max,
    warm_tokens,
)
from services.model_runtime.mapping import NUMPY_TYPES
from shared.clock import SYSTEM

TORCH_TYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool, "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32,
    "INT64": torch.int64, "UINT8": torch.uint8, "UINT16": torch.uint16, "UINT32": torch.uint32,
    "UINT64": torch.uint64, "FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32,
    "FP64": torch.float64,
}  # fmt: skip
"""By the contract's names."""
_, MASK = TOKEN_INPUTS
_OUT_OF_MEMORY = re.compile(r"not enough memory|can't allocate memory|out of memory", re.IGNORECASE)
"""How torch's allocators put it; they raise RuntimeError and subclasses."""


class InputBuffer:
    """Memory for one input, reused for every batch up to `buffer_rows` rows: a copy also aligns
    what arrived at any offset of a frame. A token model's inputs, which have no fixed size, come in
    memory of their own and are taken as they are."""

    def __init__(self, contract: TensorContract) -> None:
        if contract.datatype in ("BF16", "BYTES"):
            raise MeshError(
                "PACK_INVALID", f"input {contract.name}: {contract.datatype} is not supported"
            )
        self._is_padded = -1 in contract.shape[1:]
        self._shape = [warm_tokens if size < 0 else size for size in contract.shape[1:]]
        self._is_mask = self._is_padded and contract.name == MASK
        self._dtype = np.dtype(NUMPY_TYPES[contract.datatype]).newbyteorder("=")
        self._whole = self.zeros(0 if self._is_padded else buffer_rows)
        self._views: dict[int, tuple[Array, torch.Tensor]] = {}

    def zeros(self, rows: int) -> Array:
        """Fresh memory for this many rows; a mask's is ones: what is masked out costs less."""
        return np.full((rows, *self._shape), int(self._is_mask), dtype=self._dtype)

    def fill(self, array: Array, rows: int) -> torch.Tensor:
        """The array's rows as a tensor, valid until the next call."""
        if self._is_padded:
            return torch.from_numpy(np.ascontiguousarray(array, dtype=self._dtype))
        if rows > buffer_rows:
            return torch.from_numpy(np.array(array, dtype=self._dtype))
        view = self._views.get(rows)
        if view is None:
            part = self._whole[:rows]
            view = self._views[rows] = (part, torch.from_numpy(part))
        np.copyto(view[0], array)
        return view[1]


def as_tensor(array: Array, is_bfloat16: bool) -> torch.Tensor:
    """A tensor over the array's memory. DLPack, because it takes read-only memory as it is."""
    tensor = dlpack.from_dlpack(array)
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor


def is_out_of_memory(error: Exception) -> bool:
    """Whether a forward failed for want of memory."""
    return isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(str(error)))


def fit_cost(run: Callable[[int], object]) -> tuple[float, float]:
    """Seconds of a batch and of each of its rows: a line through the fastest run of one row and of
    `warm_rows` rows. `run(rows)` is one forward."""
    one_s, many_s = (_fastest(run, rows) for rows in (1, warm_rows))
    row_s = max(0.0, (many_s - one_s) / (warm_rows - 1))
    return one_s - row_s, row_s


def _fastest(run: Callable[[int], object], rows: int) -> float:
    """The fastest run: on a busy machine every other figure measures the neighbours."""
    best_s, spent_s = math.inf, 0.0
    for _ in range(warm_runs_max):
        started_s = SYSTEM.monotonic()
        run(rows)
        taken_s = SYSTEM.monotonic() - started_s
        best_s, spent_s = min(best_s, taken_s), spent_s + taken_s
        if spent_s > warm_seconds_max:
            break
    return best_s
