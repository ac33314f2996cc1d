"""Bombs by count are found without decoding them, a slice of the work at a time."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.wire.objects import WIDE, ObjectCount, counted_bytes_min, objects_max
from tests.unit.shared.wire import values


def count(value: object) -> int:
    """Objects in a value, itself included; one with a wide length field counts as WIDE."""
    if isinstance(value, list):
        return 1 + sum(map(count, value))
    if isinstance(value, dict):
        return 1 + sum(count(k) + count(v) for k, v in value.items())
    if isinstance(value, str | bytes):
        return WIDE if len(value) > 255 else 1
    if isinstance(value, msgpack.ExtType):
        return 1 if len(value.data) in (1, 2, 4, 8, 16) else WIDE
    return 1


def is_within(packed: bytes, limit: int, objects: int) -> bool:
    """The verdict, however many slices it takes."""
    counter = ObjectCount(packed, limit)
    for _ in range(limit // objects + 2):
        verdict = counter.advance(objects)
        if verdict is not None:
            return verdict
    raise AssertionError("it does not end")


@given(values.values, st.integers(1, 50))
def test_every_object_of_every_format_is_counted_once(value: object, objects: int) -> None:
    """At the count it passes, one below it is too many, in slices of any size."""
    packed = msgpack.packb(value)
    assert is_within(packed, count(value), objects)
    assert not is_within(packed, count(value) - 1, objects)


@pytest.mark.parametrize("value", values.LONG)
def test_the_long_formats_and_many_windows_are_counted_too(value: object) -> None:
    """bin 32, str 32, array 32 and map 32."""
    packed = msgpack.packb(value)
    assert is_within(packed, count(value), 1_000)
    assert not is_within(packed, count(value) - 1, 1_000)


@given(st.integers(65_400, 65_600), st.sampled_from([1, 255, 256, 65_536]))
def test_a_length_field_may_lie_over_the_end_of_a_window(filler: int, length: int) -> None:
    """Wherever the head falls."""
    value = [b"\0" * filler, b"\0" * length, *range(100)]
    assert is_within(msgpack.packb(value), count(value), 1_000)
    assert not is_within(msgpack.packb(value), count(value) - 1, 1_000)


def test_a_slice_takes_no_more_than_asked() -> None:
    """A bomb of a million is refused after the limit, in slices."""
    counter = ObjectCount(msgpack.packb([0] * 1_000_000), 1_000)
    assert [counter.advance(400) for _ in range(3)] == [None, None, False]


def test_a_tensor_is_one_object() -> None:
    """However large it is."""
    assert ObjectCount(msgpack.packb([0, 1, "infer", [{"data": b"\1" * 8_000_000}]]), 11).advance()


def test_the_bound_is_that_of_the_largest_table_of_rows() -> None:
    """4,096 rows of 64 columns fit, and a frame too short to be counted never holds many more."""
    assert objects_max >= 4_096 * 64 * 2
    assert counted_bytes_min <= 2 * objects_max
