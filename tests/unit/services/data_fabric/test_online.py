"""Indexes against brute force: keys, times, ties, nulls, hints."""

import random
from bisect import bisect_left
from typing import Any

import pyarrow as pa
import pytest

from services.data_fabric.engine import Engine
from services.data_fabric.online import NEVER, Index, build_index, index_query
from services.data_fabric.refusal import ViewRefused
from tests.unit.services.data_fabric.small_home import INSTANT


def index(
    table: pa.Table,
    keys: tuple[str, ...],
    time: str | None,
    columns: tuple[str, ...],
    shifts: tuple[int, ...] = (),
) -> Index:
    """The index of a table, by way of the engine."""
    engine = Engine()
    try:
        engine.create_table("r", table)
        ordered = engine.query(index_query("r", keys, time, columns))
    finally:
        engine.close()
    return build_index("r", ordered, keys, time, columns, shifts)


def timed(rows: list[tuple[Any, ...]]) -> pa.Table:
    """Rows of (key, other key, time, count, text)."""
    types = (pa.string(), pa.int64(), INSTANT, pa.int64(), pa.string())
    names = ("k", "m", "t", "n", "s")
    columns = zip(*rows, strict=True)
    return pa.table(
        {
            name: pa.array(column, type_)
            for name, column, type_ in zip(names, columns, types, strict=True)
        }
    )


def test_a_keyed_relation_gives_the_row_of_a_key() -> None:
    """Columns in the asked order; a key with a null is left out."""
    found = index(timed([("a", 1, 5, 7, "x"), ("b", 2, 6, 8, None)]), ("k",), None, ("s", "n"))
    assert found.entries == {"a": ("x", 7), "b": (None, 8)}
    assert found.entries.get("c", found.empty) == (None, None)
    two = index(timed([("a", 1, 5, 7, "x"), ("a", None, 6, 8, "y")]), ("k", "m"), None, ())
    assert two.entries == {("a", 1): ()}


def test_two_rows_of_one_key_are_refused() -> None:
    """Even equal ones: a join would double the request's row."""
    with pytest.raises(ViewRefused, match="make it single-valued"):
        index(timed([("a", 1, 5, 7, "x")] * 2), ("k",), None, ("n",))


def test_equal_rows_of_one_instant_are_one_and_different_ones_are_refused() -> None:
    """A running total has one value an instant; anything else leaves the choice to chance."""
    found = index(timed([("a", 1, 5, 7, "x")] * 3), ("k",), "t", ("n",))
    assert list(found.entries["a"][0]) == [NEVER, 5]
    with pytest.raises(ViewRefused, match="make it single-valued"):
        index(timed([("a", 1, 5, 7, "x"), ("a", 1, 5, 8, "x")]), ("k",), "t", ("n",))


def test_an_as_of_look_up_finds_what_brute_force_finds() -> None:
    """Random relations with many ties, gaps and nulls, asked at, before and after every time."""
    draw = random.Random(3)
    rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for _ in range(400):
        key = (draw.choice("abc"), draw.choice((1, 2, None)), draw.randrange(60))
        rows[key] = (*key, draw.choice((None, 1, 2)), draw.choice((None, "x", "é")))
    found = index(timed(list(rows.values())), ("k", "m"), "t", ("n", "s"))
    for key in [("a", 1), ("b", 2), ("c", 1), ("z", 1)]:
        entry = found.entries.get(key, found.empty)
        for bound in range(-1, 62):
            at = bisect_left(entry[0], bound) - 1
            before = [row for row in rows.values() if row[:2] == key and row[2] < bound]
            expected = max(before, key=lambda row: row[2], default=(None,) * 5)
            assert (entry[1][at], entry[2][at]) == expected[3:]
            assert entry[0][at] == (expected[2] if before else NEVER)


def test_hints_hold_the_position_of_a_shifted_bound() -> None:
    """For every bound the shifted position lies between the hints of the unshifted one."""
    draw = random.Random(4)
    times = sorted(draw.sample(range(1_000), 200))
    shifts = (1, 17, 400, 5_000)
    found = index(
        timed([("a", 1, at, at, "x") for at in times]), ("k",), "t", ("n",), shifts
    )  # fmt: skip
    own_times, _, *hints = found.entries["a"]
    for bound in range(-2, 1_003):
        at = bisect_left(own_times, bound) - 1
        for shift, hint in zip(shifts, hints, strict=True):
            exact = bisect_left(own_times, bound - shift)
            assert hint[at] <= exact <= hint[at + 1]
            assert bisect_left(own_times, bound - shift, hint[at], hint[at + 1]) == exact
    for hint in found.empty[2:]:
        assert bisect_left(found.empty[0], 5, hint[0], hint[1]) - 1 == 0


def test_packed_columns_have_no_nulls() -> None:
    """Numbers without nulls lie in arrays; a column with a null keeps its objects."""
    rows = [("a", 1, at, at, "x") for at in range(5)]
    assert index(timed(rows), ("k",), "t", ("n", "s")).packed == {"n"}
    rows.append(("a", 1, 9, None, "x"))
    assert not index(timed(rows), ("k",), "t", ("n", "s")).packed


def test_times_outside_the_years_are_refused() -> None:
    """Zones are certified for 1900 to 2199."""
    with pytest.raises(ViewRefused, match="leaves the years"):
        index(timed([("a", 1, 9 * 10**15, 1, "x")]), ("k",), "t", ("n",))
