"""Feature rows as an encoded FeatureBlock: columns of little-endian bytes, one block a request.

The parts that a view's blocks have in common are encoded once. Source: `contracts.features`.
"""

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from contracts.features import ViewHeader

_ENCODER = msgspec.msgpack.Encoder()
_DATATYPES = {
    "bool": ("BOOL", "?"),
    "int64": ("INT64", "q"),
    "float64": ("FP64", "d"),
    "timestamp": ("INT64", "q"),
    "string": ("BYTES", ""),
}
_VALIDITY = _ENCODER.encode("validity")


class BlockEncoder:
    """Encodes blocks of one view."""

    def __init__(self, digest: str, header: ViewHeader) -> None:
        encode = _ENCODER.encode
        self._head = b"\x83" + encode("view") + encode(digest) + encode("rows")
        self._columns_head = encode("columns") + _list_head(len(header.fields))
        self._columns = []
        for contract in header.fields.values():
            datatype, code = _DATATYPES[contract.dtype]
            body = encode("datatype") + encode(datatype) + encode("data")
            self._columns.append((b"\x82" + body, b"\x83" + body, code))

    def encode(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """The block of the rows, each with the features in the header's order (a row may be
        longer). Raises struct.error when an integer leaves 64 bits."""
        count = len(rows)
        parts = [self._head, _ENCODER.encode(count), self._columns_head]
        columns: Any = zip(*rows, strict=True) if rows else ((),) * len(self._columns)
        for (whole, with_gaps, code), column in zip(self._columns, columns, strict=False):
            if not code:
                parts += (whole, _ENCODER.encode(column))
            elif None not in column:
                parts += (whole, _bin(struct.pack(f"<{count}{code}", *column)))
            else:
                filled = [0 if value is None else value for value in column]
                parts += (
                    with_gaps,
                    _bin(struct.pack(f"<{count}{code}", *filled)),
                    _VALIDITY,
                    _bin(validity(column)),
                )
        return b"".join(parts)


def validity(column: Sequence[Any]) -> bytes:
    """One bit a value, least significant first, 1 = present."""
    bits = sum(1 << at for at, value in enumerate(column) if value is not None)
    return bits.to_bytes((len(column) + 7) // 8, "little")


def _bin(content: bytes) -> bytes:
    """A MessagePack `bin` of the shortest form."""
    size = len(content)
    if size < 256:
        return b"\xc4" + size.to_bytes(1, "big") + content
    if size < 65_536:
        return b"\xc5" + size.to_bytes(2, "big") + content
    return b"\xc6" + size.to_bytes(4, "big") + content


def _list_head(count: int) -> bytes:
    """The head of a MessagePack list of so many items."""
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big")
