"""How far two answers to the same rows are apart. Pure."""

import struct
from collections.abc import Sequence

from services.orchestrator.plan import TensorPlan

_FORMATS = {
    "BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip


def numbers_of(data: bytes, datatype: str, count_max: int) -> Sequence[float]:
    """The first numbers of little-endian bytes, at most `count_max`."""
    if datatype == "BF16":  # the upper half of FP32
        halves = struct.unpack_from(f"<{min(count_max, len(data) // 2)}H", data)
        return struct.unpack(
            f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *[half << 16 for half in halves])
        )
    size = struct.calcsize(f"<{_FORMATS[datatype]}")
    count = min(count_max, len(data) // size)
    return struct.unpack_from(f"<{count}{_FORMATS[datatype]}", data)


def difference(left: Sequence[float], right: Sequence[float]) -> float:
    """The largest absolute difference; infinite if only one of a pair is not a number."""
    worst = 0.0
    for one, other in zip(left, right, strict=True):
        if one == other:
            continue
        apart = abs(one - other)
        if apart != apart:
            apart = 0.0 if one != one and other != other else float("inf")
        worst = max(worst, apart)
    return worst


def outputs_difference(
    outputs: Sequence[TensorPlan], left: Sequence[bytes], right: Sequence[bytes], count_max: int
) -> float:
    """Of the first `count_max` numbers of all outputs together."""
    worst, count_left = 0.0, count_max
    for plan, one, other in zip(outputs, left, right, strict=True):
        if count_left <= 0:
            break
        numbers = numbers_of(one, plan.datatype, count_left)
        worst = max(worst, difference(numbers, numbers_of(other, plan.datatype, count_left)))
        count_left -= len(numbers)
    return worst
