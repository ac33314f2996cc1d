"""Encoded feature blocks, one a request → the columns of the whole batch. Pure.

A block has some forty columns and mostly one row, so what costs is the number of Python steps:
types are checked by the decoder, columns are joined by kind, never one by one.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, Literal

import msgspec
import numpy as np

from contracts.features import Dtype, FeatureBlock, FeatureColumn
from contracts.inference import Datatype
from contracts.types import Open
from services.model_runtime.encoding import Columns, Encoding
from services.model_runtime.mapping import Array

_data, _validity = attrgetter("data"), attrgetter("validity")


class _Column(Open, frozen=True, kw_only=True, gc=False):
    """A `FeatureColumn` of one datatype; small `bin`s are cheaper to copy than to view. Without a
    validity map every row has a value."""

    data: bytes
    validity: bytes = b""


class _Fp64(_Column, frozen=True, kw_only=True, gc=False):
    datatype: Literal["FP64"]


class _Int64(_Column, frozen=True, kw_only=True, gc=False):
    datatype: Literal["INT64"]


class _Bool(_Column, frozen=True, kw_only=True, gc=False):
    datatype: Literal["BOOL"]


class _Text(Open, frozen=True, kw_only=True, gc=False):
    datatype: Literal["BYTES"]
    data: list[str | None]


_KINDS: dict[Dtype, tuple[type[Any], Datatype]] = {
    "float64": (_Fp64, "FP64"),
    "int64": (_Int64, "INT64"),
    "timestamp": (_Int64, "INT64"),
    "bool": (_Bool, "BOOL"),
    "string": (_Text, "BYTES"),
}


class BlockReader:
    """Reads the blocks of one view."""

    def __init__(self, view: str, fields: Mapping[str, Dtype], encoding: Encoding) -> None:
        self._view = view
        self._fields = fields
        order = list(fields)
        self._texts = [(order.index(name), name) for name in encoding.texts]
        # The wanted numeric columns by width: FP64, then INT64, then BOOL.
        kinds = [_KINDS[fields[name]][1] for name in encoding.numeric]
        by_kind = [
            [row for row, found in enumerate(kinds) if found == kind]
            for kind in ("FP64", "INT64", "BOOL")
        ]
        self._counts = [len(rows) for rows in by_kind]
        self._rows = [row for rows in by_kind for row in rows]
        self._places = [order.index(encoding.numeric[row]) for row in self._rows]
        columns = tuple(_KINDS[dtype][0] for dtype in fields.values())
        block = msgspec.defstruct(
            "Block",
            [("view", str), ("rows", int), ("columns", tuple[columns])],  # type: ignore[valid-type]
            frozen=True,
            gc=False,
        )
        self._decode: Callable[[msgspec.Raw], Any] = msgspec.msgpack.Decoder(block).decode

    def read(self, encoded: Sequence[msgspec.Raw], rows: Sequence[int]) -> Columns:
        """The columns that the encoding wants; block i has `rows[i]` rows.

        Raises ValueError saying what is not as the view or the batch has it.
        """
        try:
            blocks = [self._decode(block) for block in encoded]
        except msgspec.MsgspecError as error:
            raise ValueError(f"a feature block is malformed: {error}") from error
        found = [block.rows for block in blocks]
        if found != rows:
            raise ValueError(f"blocks have {found[:8]} rows, requests {list(rows[:8])}")
        for block in blocks:
            if block.view != self._view:
                raise ValueError(f"the model takes view {self._view}, received {block.view}")
        # by_column[c][b]: column c of block b
        by_column = list(zip(*[block.columns for block in blocks], strict=True))
        columns = list(chain.from_iterable([by_column[place] for place in self._places]))
        return Columns(
            numbers=self._numbers(columns, rows),
            present=self._present(columns, rows),
            texts=[_text(by_column[place], name, rows) for place, name in self._texts],
        )

    def example(self) -> msgspec.Raw:
        """A block of one row of zeros and nulls."""
        columns = [
            FeatureColumn(datatype="BYTES", data=[None])
            if dtype == "string"
            else FeatureColumn(
                datatype=_KINDS[dtype][1], data=memoryview(bytes(1 if dtype == "bool" else 8))
            )
            for dtype in self._fields.values()
        ]
        block = FeatureBlock(view=self._view, rows=1, columns=columns)
        return msgspec.Raw(msgspec.msgpack.encode(block))

    def _numbers(self, columns: Sequence[_Column], rows: Sequence[int]) -> Array:
        """FP64 [numeric, n] of columns in the order of `_places`, then of blocks."""
        floats, integers, booleans = self._counts
        parts = list(map(_data, columns))
        wide = [8 * count for count in rows] * (floats + integers)
        if list(map(len, parts)) != wide + list(rows) * booleans:
            raise ValueError("a column has not one value or null a row")
        joined = b"".join(parts)
        n = sum(rows)
        numbers = np.empty((len(self._rows), n))
        starts = (0, 8 * n * floats, 8 * n * (floats + integers))
        for start, count, dtype, first in zip(
            starts,
            self._counts,
            ("<f8", "<i8", "|b1"),
            accumulate([0, *self._counts]),
            strict=False,
        ):
            values = np.frombuffer(joined, dtype, count * n, start)
            numbers[self._rows[first : first + count]] = values.reshape(count, n)
        return numbers

    def _present(self, columns: Sequence[_Column], rows: Sequence[int]) -> Array | None:
        """Booleans [numeric, n], or None when no column has a validity map."""
        validities = list(map(_validity, columns))
        if not any(validities):
            return None
        sizes = [(count + 7) // 8 for count in rows]
        every = [b"\xff" * size for size in sizes] * len(self._places)
        maps = [one or full for one, full in zip(validities, every, strict=True)]
        if list(map(len, maps)) != sizes * len(self._places):
            raise ValueError("a validity map has not one bit a row")
        bits = np.unpackbits(np.frombuffer(b"".join(maps), np.uint8), bitorder="little")
        by_column = bits.reshape(len(self._places), -1)  # each block padded to whole bytes
        present = np.empty((len(self._places), sum(rows)), dtype=bool)
        present[self._rows] = by_column[:, _row_bits(tuple(rows))]
        return present


@lru_cache(maxsize=256)
def _row_bits(rows: tuple[int, ...]) -> Array:
    """Which bits of the joined maps stand for a row; the others pad a block to whole bytes."""
    padded = [(count + 7) // 8 * 8 for count in rows]
    place_in_block = np.concatenate([np.arange(bits) for bits in padded])
    is_row: Array = place_in_block < np.repeat(rows, padded)
    return is_row


def _text(column: Sequence[_Text], name: str, rows: Sequence[int]) -> list[str | None]:
    if [len(part.data) for part in column] != rows:
        raise ValueError(f"{name} has not one string or null a row")
    return list(chain.from_iterable([part.data for part in column]))
