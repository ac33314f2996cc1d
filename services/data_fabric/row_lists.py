"""Encoded lists of rows that are not decoded yet: how long they are, and their parts."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from contracts.errors import MeshError
from contracts.limits import rows_per_request_max

_decoder = msgspec.msgpack.Decoder(
    Annotated[list[msgspec.Raw], Meta(max_length=rows_per_request_max)]
)


def row_count(raw: msgspec.Raw | bytes) -> int:
    """How many items an encoded list says that it has; 0 for anything else. Reads its head only.
    Source: the MessagePack specification, array format family."""
    head = bytes(memoryview(raw)[:5])
    if head[0] & 0xF0 == 0x90:
        return head[0] & 0x0F
    if head[0] == 0xDC:
        return int.from_bytes(head[1:3], "big")
    return int.from_bytes(head[1:5], "big") if head[0] == 0xDD else 0


def split_rows(raw: msgspec.Raw | bytes) -> list[msgspec.Raw]:
    """Each row's bytes. Raises MeshError INVALID_REQUEST if it is no list, or longer than a
    request may be."""
    try:
        return _decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise MeshError("INVALID_REQUEST", f"rows: {error}") from error


def slices(raw: msgspec.Raw | bytes, rows: int) -> Iterator[bytes]:
    """An encoded list as encoded lists of at most `rows` items. Raises as `split_rows` does."""
    parts = split_rows(raw)
    for start in range(0, len(parts), rows):
        yield msgspec.msgpack.encode(parts[start : start + rows])
