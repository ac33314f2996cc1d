"""Bombs by count are found without decoding them."""

import msgpack
import pytest
from hypothesis import given

from shared.wire.framing import Framer, HeldBytes
from shared.wire.objects import counted_bytes_min, has_too_many_objects, objects_max
from tests.unit.shared.wire import values


def count(value: object) -> int:
    """Objects in a value, itself included."""
    if isinstance(value, list):
        return 1 + sum(map(count, value))
    if isinstance(value, dict):
        return 1 + sum(count(k) + count(v) for k, v in value.items())
    return 1


@given(values.values)
def test_every_object_of_every_format_is_counted_once(value: object) -> None:
    """At the count it passes, one below it is too many."""
    packed = memoryview(msgpack.packb(value))
    objects = count(value)
    assert not has_too_many_objects(packed, objects)
    assert has_too_many_objects(packed, objects - 1)


@pytest.mark.parametrize("value", values.LONG)
def test_the_long_formats_are_counted_too(value: object) -> None:
    """bin 32, str 32, array 32 and map 32."""
    packed = memoryview(msgpack.packb(value))
    assert not has_too_many_objects(packed, count(value))
    assert has_too_many_objects(packed, count(value) - 1)


@pytest.mark.parametrize(
    ("length", "is_violation"),
    [(counted_bytes_min - 16, False), (counted_bytes_min + 16, True)],
)
def test_a_large_frame_of_many_objects_is_a_violation(length: int, is_violation: bool) -> None:
    """A list of one-byte numbers: a short one passes (it is cheap), a long one does not."""
    frame = b"\x93\x02\xa1x\xdd" + length.to_bytes(4, "big") + b"\x01" * length
    cutter = Framer(HeldBytes(1 << 30))
    frames = cutter.feed(frame)
    assert (len(frames), cutter.fault is not None) == (int(not is_violation), is_violation)


def test_a_large_frame_of_few_objects_passes() -> None:
    """A tensor is one object."""
    frame = msgpack.packb([0, 1, "infer", [{"inputs": [{"data": b"\1" * 8_000_000}]}]])
    assert len(Framer(HeldBytes(1 << 30)).feed(frame)) == 1


def test_the_bound_is_that_of_the_largest_table_of_rows() -> None:
    """4,096 rows of 32 columns, keys and values counted, fit."""
    assert objects_max >= 4_096 * 32 * 2
