"""Feature rows as an encoded FeatureBlock: columns of little-endian bytes, one block a request.

The parts that a view's blocks have in common are encoded once. Source: `contracts.features`.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from contracts.features import ViewHeader

_encode = msgspec.msgpack.Encoder().encode
_DATATYPES = {
    "bool": ("BOOL", "?"),
    "int64": ("INT64", "q"),
    "float64": ("FP64", "d"),
    "timestamp": ("INT64", "q"),
    "string": ("BYTES", ""),
}
_VALIDITY = _encode("validity")


class _Column:
    """One feature's column. `pack(prefix, value)` is the whole column of a single present value,
    `gap` that of a single null; `code` is empty for texts."""

    def __init__(self, dtype: str) -> None:
        datatype, self.code = _DATATYPES[dtype]
        body = _encode("datatype") + _encode(datatype) + _encode("data")
        self.head, self.head_with_gaps = b"\x82" + body, b"\x83" + body
        self.pack: Callable[[bytes, Any], bytes]
        if self.code:
            size = struct.calcsize(f"<{self.code}")
            self.prefix = self.head + b"\xc4" + bytes([size])
            self.pack = struct.Struct(f"<{len(self.prefix)}s{self.code}").pack
            self.gap = self.with_gaps(bytes(size), b"\0")
        else:
            self.prefix = self.head + b"\x91"
            self.pack = _pack_text
            self.gap = self.prefix + _encode(None)

    def with_gaps(self, content: bytes, validity: bytes) -> bytes:
        """The column of several values with nulls among them."""
        return self.head_with_gaps + _bin(content) + _VALIDITY + _bin(validity)

    def many(self, values: Sequence[Any]) -> bytes:
        """The column of any number of values."""
        if not self.code:
            return self.head + _encode(values)
        form = f"<{len(values)}{self.code}"
        if None not in values:
            return self.head + _bin(struct.pack(form, *values))
        filled = [0 if value is None else value for value in values]
        return self.with_gaps(struct.pack(form, *filled), validity_of(values))


def _pack_text(prefix: bytes, value: str) -> bytes:
    return prefix + _encode(value)


class BlockEncoder:
    """Encodes blocks of one view."""

    def __init__(self, digest: str, header: ViewHeader) -> None:
        self._head = b"\x83" + _encode("view") + _encode(digest) + _encode("rows")
        self._columns_head = _encode("columns") + _list_head(len(header.fields))
        self._columns = [_Column(contract.dtype) for contract in header.fields.values()]
        self._singles = [(one.pack, one.prefix, one.gap) for one in self._columns]
        self._single_head = self._head + _encode(1) + self._columns_head

    def encode(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """The block of the rows, each with the features in the header's order (a row may be
        longer). Integers are within 64 bits."""
        if len(rows) == 1:
            # Most requests have one row: a single call per value, three times as fast.
            singles = zip(self._singles, rows[0], strict=False)
            return self._single_head + b"".join(
                [pack(prefix, v) if v is not None else gap for (pack, prefix, gap), v in singles]
            )
        columns: Any = zip(*rows, strict=True) if rows else ((),) * len(self._columns)
        pairs = zip(self._columns, columns, strict=False)
        parts = [column.many(values) for column, values in pairs]
        return b"".join([self._head, _encode(len(rows)), self._columns_head, *parts])


def validity_of(values: Sequence[Any]) -> bytes:
    """One bit a value, least significant first, 1 = present."""
    bits = sum(1 << at for at, value in enumerate(values) if value is not None)
    return bits.to_bytes((len(values) + 7) // 8, "little")


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
