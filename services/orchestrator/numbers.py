"""A list of numbers as the little-endian bytes of a datatype. Never rounds an integer, never
accepts a boolean as a number."""

import struct
from collections.abc import Sequence

_FORMATS = {
    "BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP16": "e", "FP32": "f", "FP64": "d", "BF16": "f",
}  # fmt: skip
"""struct's letters; BF16 is the upper half of FP32."""

Number = int | float | bool | str


def pack_numbers(numbers: Sequence[Number], datatype: str) -> bytes:
    """The numbers as `datatype`. Raises ValueError naming the first that it cannot hold."""
    wanted = _types(datatype)
    for number in numbers:
        if type(number) not in wanted:
            raise ValueError(f"{str(number)[:32]!r} is not a number of {datatype}")
    try:
        packed = struct.pack(f"<{len(numbers)}{_FORMATS[datatype]}", *numbers)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"a number is outside {datatype}") from error
    return _upper_halves(packed) if datatype == "BF16" else packed


def _types(datatype: str) -> tuple[type, ...]:
    if datatype == "BOOL":
        return (bool,)
    return (int, float) if datatype.startswith(("FP", "BF")) else (int,)


def _upper_halves(singles: bytes) -> bytes:
    """FP32 → BF16, rounded to nearest, ties to even; a NaN stays a NaN."""
    count = len(singles) // 4
    halves = []
    for bits in struct.unpack(f"<{count}I", singles):
        if bits & 0x7FFF_FFFF > 0x7F80_0000:
            halves.append(bits >> 16 | 0x0040)
        else:
            halves.append((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    return struct.pack(f"<{count}H", *halves)
