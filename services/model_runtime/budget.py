"""What a loaded model takes of the runtime's memory, and who goes where one does not fit. Pure.

Counted are the weights and the buffers that last as long as the model; what a forward allocates and
frees is not, which is what the head-room is for.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from contracts.errors import MeshError
from contracts.pack import Manifest, TensorContract
from services.model_runtime.config import buffer_headroom, buffer_rows
from services.model_runtime.encoding import input_shapes
from services.model_runtime.mapping import NUMPY_TYPES

mib = 1024 * 1024


class Held(Protocol):
    """A loaded version."""

    needed_bytes: int


HeldT = TypeVar("HeldT", bound=Held)


def needed_bytes(manifest: Manifest) -> int:
    """Of a pack: its weights, and `buffer_rows` rows of its inputs and outputs with head-room."""
    tensors = [*input_shapes(manifest), *manifest.contract.outputs]
    buffers = buffer_rows * sum(_row_bytes(tensor) for tensor in tensors)
    return sum(tensor.bytes for tensor in manifest.tensors) + int(buffer_headroom * buffers)


def choose_evictions(needed: int, free: int, idle: Sequence[HeldT]) -> list[HeldT]:
    """Those of `idle`, given in the order in which they may go, that have to; none that does not.

    Raises MeshError MEMORY_EXHAUSTED when `needed` bytes do not fit without all of them.
    """
    chosen: list[HeldT] = []
    room = free
    for held in idle:
        if room >= needed:
            break
        chosen.append(held)
        room += held.needed_bytes
    if room < needed:
        raise MeshError(
            "MEMORY_EXHAUSTED",
            f"{needed / mib:.1f} MiB are needed, {free / mib:.1f} MiB are free and"
            f" {(room - free) / mib:.1f} MiB more without the versions that nobody needs:"
            f" deploy fewer versions here, or raise memory_mib_max",
        )
    for held in list(chosen):  # a later one may have made an earlier one unnecessary
        if room - held.needed_bytes >= needed:
            chosen.remove(held)
            room -= held.needed_bytes
    return chosen


def used_bytes(held: Iterable[Held]) -> int:
    """Of the budget."""
    return sum(one.needed_bytes for one in held)


def _row_bytes(tensor: TensorContract) -> int:
    datatype = NUMPY_TYPES.get(tensor.datatype)
    itemsize = 0 if datatype is None else np.dtype(datatype).itemsize
    return math.prod(size for size in tensor.shape[1:] if size > 0) * itemsize
