"""Undecoded `rows`: how many there are, and the same rows in smaller lists."""

import msgspec
from msgspec import Raw

from contracts.errors import MeshError
from contracts.limits import rows_per_request_max

_decode = msgspec.msgpack.Decoder(list[Raw]).decode
_encode = msgspec.msgpack.Encoder().encode


def count_rows(rows: Raw) -> int:
    """The number in the array's header, 1 … rows_per_request_max. Raises INVALID_REQUEST; whether
    each is a map, and of what, is for the data fabric."""
    head = bytes(memoryview(rows)[:5])
    if head and head[0] & 0xF0 == 0x90:
        count = head[0] & 0x0F
    elif head[:1] == b"\xdc":
        count = int.from_bytes(head[1:3], "big")
    elif head[:1] == b"\xdd":
        count = int.from_bytes(head[1:5], "big")
    else:
        raise MeshError("INVALID_REQUEST", "rows is a list of maps, one a row")
    if not 1 <= count <= rows_per_request_max:
        raise MeshError(
            "INVALID_REQUEST",
            f"rows has {count} entries, 1 to {rows_per_request_max} are allowed",
        )
    return count


def divide_rows(rows: Raw, spans: list[tuple[int, int]]) -> list[Raw]:
    """The rows of each (start, count), spliced unopened."""
    each = _decode(rows)
    return [Raw(_encode(each[start : start + count])) for start, count in spans]
