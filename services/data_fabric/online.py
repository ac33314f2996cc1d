"""Relations as the closure reads them: the row of a key, and the last row of a key before a time.

An index maps a key (a value, or a tuple of values in the order of the key columns) to an entry.
The entry of a keyed relation is the tuple of the row's values. The entry of a timed relation is
its times, ascending, then one sequence per value column, then one of hints per shift. Position 0
is a sentinel, so that "no row before the bound" is a position too. Rows with a null in key or time
are left out, because no comparison finds them.

A look-up costs cache misses rather than instructions (tens of megabytes, touched at random). Hence
numbers lie packed in arrays; and where a second bound is the first one minus a fixed shift, the
first one's position bounds the second bisection: hints[p] ≤ position of (bound − shift) ≤
hints[p + 1], because both sides are monotone in the bound.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from services.data_fabric.engine import quote
from services.data_fabric.refusal import ViewRefused
from services.data_fabric.zones import FIRST_US, LAST_US, YEARS

NEVER = -(2**63)
"""Before every instant: the time of a row that is not there."""

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Index:
    """One relation under one key. `empty` is the entry of a key that is not there; `packed` are
    the columns whose sentinel is 0 instead of None."""

    relation: str
    keys: tuple[str, ...]
    time: str | None
    columns: tuple[str, ...]
    shifts: tuple[int, ...]
    dtypes: dict[str, str]
    packed: frozenset[str]
    entries: dict[Any, Any]
    empty: Any
    rows: int


def index_query(
    relation: str, keys: Sequence[str], time: str | None, columns: Sequence[str]
) -> str:
    """The SQL that brings a relation into the order of its index. Equal rows of a timed relation
    are one: a running total has the same value in all rows of an instant."""
    ordering = [*keys, *([time] if time else [])]
    used = ", ".join(map(quote, dict.fromkeys([*ordering, *columns])))
    present = " AND ".join(f"{quote(column)} IS NOT NULL" for column in ordering)
    order = ", ".join(map(quote, ordering))
    distinct = "DISTINCT " if time else ""
    return f"SELECT {distinct}{used} FROM {quote(relation)} WHERE {present} ORDER BY {order}"


def build_index(
    relation: str,
    table: pa.Table,
    keys: Sequence[str],
    time: str | None,
    columns: Sequence[str],
    shifts: Sequence[int] = (),
) -> Index:
    """Index the result of `index_query`. Instants become integer microseconds; `shifts` are in
    microseconds. Raises ViewRefused when two rows have the same key (and time): a look-up could
    then find either of them."""
    table = _with_integer_instants(table, dtypes := _dtypes(table.schema)).combine_chunks()
    packed = frozenset(
        column
        for column in columns
        if dtypes[column] in _TYPE_CODES and table[column].null_count == 0
    )
    starts = _starts(table, keys)
    firsts = [table[column].take(starts).to_pylist() for column in keys]
    entry_keys = firsts[0] if len(keys) == 1 else list(zip(*firsts, strict=True))
    taken = [_sequence(table, column, dtypes, packed) for column in columns]
    if time is None:
        rows = zip(*taken, strict=True) if columns else iter([()] * len(table))
        entries = dict(zip(entry_keys, rows, strict=False))
        is_single = len(entry_keys) == len(table)
    else:
        times = table[time].to_numpy()
        _check_times(relation, time, dtypes[time], times)
        entries, is_single = _timed(entry_keys, starts, times, taken, shifts)
    if not is_single:
        raise not_single_valued(relation, keys, time)
    return Index(
        relation, tuple(keys), time, tuple(columns), tuple(shifts), dtypes, packed, entries,
        empty_entry(time, columns, shifts), len(table),
    )  # fmt: skip


def empty_entry(time: str | None, columns: Sequence[str], shifts: Sequence[int]) -> Any:
    """The entry of a key that is not there: nothing but sentinels."""
    nothing: tuple[Any, ...] = (None,) * len(columns)
    if time is None:
        return nothing
    hints = (array("i", [1, 1]) for _ in shifts)
    return (array("q", [NEVER]), *([value] for value in nothing), *hints)


def not_single_valued(relation: str, keys: Sequence[str], time: str | None) -> ViewRefused:
    """The refusal of a relation in which a look-up could find either of two rows."""
    names = ", ".join([*keys, *([time] if time else [])])
    reason = f"{relation} has different rows with the same ({names}): make it single-valued"
    return ViewRefused.of(reason)


_TYPE_CODES = {"int64": "q", "timestamp": "q", "clock": "q", "float64": "d"}


def _dtypes(schema: pa.Schema) -> dict[str, str]:
    return {field.name: _dtype(field.type) for field in schema}


def _dtype(arrow: pa.DataType) -> str:
    if pa.types.is_timestamp(arrow):
        return "timestamp" if arrow.tz else "clock"
    if pa.types.is_integer(arrow):
        return "int64"
    if pa.types.is_floating(arrow):
        return "float64"
    if pa.types.is_boolean(arrow):
        return "bool"
    return "string" if pa.types.is_string(arrow) else str(arrow)


def _with_integer_instants(table: pa.Table, dtypes: dict[str, str]) -> pa.Table:
    for at, (name, dtype) in enumerate(dtypes.items()):
        column = table[name]
        if dtype in ("timestamp", "clock"):
            column = column.cast(pa.timestamp("us", column.type.tz))
        if dtype in ("timestamp", "clock", "int64"):
            table = table.set_column(at, name, column.cast(pa.int64()))
    return table


def _check_times(relation: str, time: str, dtype: str, times: Times) -> None:
    if dtype != "timestamp":
        raise ViewRefused.of(f"{relation}.{time} is {dtype}, AS OF takes an instant")
    if len(times) and not FIRST_US <= times.min() <= times.max() <= LAST_US:
        reason = f"{relation}.{time} leaves the years {YEARS[0]} to {YEARS[1]}"
        raise ViewRefused.of(reason)


def _starts(table: pa.Table, keys: Sequence[str]) -> Times:
    """The first row of each key, in a table ordered by key. Works on codes rather than on values,
    so that no object is made per row."""
    changes = np.zeros(len(table), dtype=bool)
    changes[:1] = True
    for column in keys:
        codes = table[column].combine_chunks().dictionary_encode().indices.to_numpy()
        changes[1:] |= codes[1:] != codes[:-1]
    return np.flatnonzero(changes)


def _sequence(
    table: pa.Table, column: str, dtypes: dict[str, str], packed: frozenset[str]
) -> Sequence[Any]:
    if column in packed:
        return array(_TYPE_CODES[dtypes[column]], table[column].to_numpy().tobytes())
    values: list[Any] = []
    for start in range(0, len(table), _slice_rows):
        # One long call would keep every other thread from running.
        values += table[column].slice(start, _slice_rows).to_pylist()
    return values


_slice_rows = 4_096


def _timed(
    entry_keys: list[Any],
    starts: Times,
    times: Times,
    columns: list[Sequence[Any]],
    shifts: Sequence[int],
) -> tuple[dict[Any, tuple[Any, ...]], bool]:
    """The entries, and whether the times of each are strictly ascending."""
    entries, is_single = {}, True
    bounds = pairwise([*starts.tolist(), len(times)])
    for key, (start, end) in zip(entry_keys, bounds, strict=True):
        own = times[start:end]
        is_single = is_single and bool((np.diff(own) > 0).all())
        own_times = array("q", [NEVER])
        own_times.frombytes(own.tobytes())
        parts = (
            array(column.typecode, [0]) + column[start:end]
            if isinstance(column, array)
            else [None, *column[start:end]]
            for column in columns
        )
        entries[key] = (own_times, *parts, *(_hints(own, shift) for shift in shifts))
    return entries, is_single


def _hints(times: Times, shift: int) -> "array[int]":
    """For each position, the sentinel's and one past the last included, the first position at
    which a time minus the shift would be inserted. Positions count the sentinel, hence the 1."""
    hints = array("i", [1])
    hints.frombytes((np.searchsorted(times, times - shift) + 1).astype(np.int32).tobytes())
    hints.append(len(times) + 1)
    return hints
