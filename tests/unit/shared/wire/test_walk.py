"""The walk over one large frame: every format is stepped over, in slices, within its limits."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.limits import frame_objects_max, frame_str_bytes_max
from shared.wire.walk import Progress, Violation, Walk, slice_work
from tests.unit.shared.wire import values


def end_of(stream: bytes, arrivals: list[int]) -> int | None:
    """Where the first frame ends when the stream arrives in pieces; None: not yet."""
    walker, held = Walk(), bytearray()
    edges = sorted({edge % (len(stream) + 1) for edge in arrivals} | {len(stream)})
    start = 0
    for edge in edges:
        held += stream[start:edge]
        start = edge
        while (progress := walker.advance(held)) is Progress.NEEDS_TURN:
            pass
        if progress is Progress.DONE:
            return walker.position
    return None


@given(values.values, st.binary(max_size=20), values.cuts)
def test_the_end_is_that_of_the_value(value: object, rest: bytes, arrivals: list[int]) -> None:
    """Whatever follows it, and however it arrives."""
    packed = msgpack.packb(value)
    assert end_of(packed + rest, arrivals) == len(packed)


@given(values.values, values.cuts)
def test_a_prefix_needs_more(value: object, arrivals: list[int]) -> None:
    """All but the last byte is not the whole."""
    assert end_of(msgpack.packb(value)[:-1], arrivals) is None


@pytest.mark.parametrize("value", values.LONG)
def test_the_long_formats_are_stepped_over(value: object) -> None:
    """bin 32, str 32, array 32 and map 32, in many slices."""
    packed = msgpack.packb(value)
    assert end_of(packed, [1, 3, 5, 100, 70_000]) == len(packed)


@pytest.mark.parametrize("head", sorted(set(range(256)) - {0xC1}))
def test_every_head_byte_has_a_length(head: int) -> None:
    """The same as another implementation finds, for a value of nothing but zeros."""
    stream = bytes([head]) + b"\0" * 64
    unpacker = msgpack.Unpacker()
    unpacker.feed(stream)
    unpacker.skip()
    assert end_of(stream, []) == unpacker.tell()


def test_the_byte_that_is_never_used_is_a_violation() -> None:
    """0xc1."""
    with pytest.raises(Violation, match="0xc1"):
        Walk().advance(bytearray(b"\x92\x01\xc1"))


def bomb(count: int) -> bytearray:
    """A list whose objects, itself included, are `count`."""
    return bytearray(b"\xdd" + (count - 1).to_bytes(4, "big") + b"\x01" * (count - 1))


@pytest.mark.parametrize(("over", "is_violation"), [(-1, False), (0, False), (1, True)])
def test_at_the_limit_of_objects_it_passes(over: int, is_violation: bool) -> None:
    """One more is too many; each slice takes no more than its share."""
    held, walker, slices = bomb(frame_objects_max + over), Walk(), 1
    try:
        while walker.advance(held) is Progress.NEEDS_TURN:
            assert walker.position <= slices * slice_work + 4
            slices += 1
    except Violation as violation:
        assert is_violation, violation  # noqa: PT017 — whether it is one is the question
    else:
        assert not is_violation
    assert slices == frame_objects_max // slice_work + 1


@pytest.mark.parametrize(("over", "is_violation"), [(0, False), (1, True)])
def test_a_longer_str_than_allowed_is_refused_at_its_head(over: int, is_violation: bool) -> None:
    """Before its bytes arrive; a bin of the same length passes."""
    length = (frame_str_bytes_max + over).to_bytes(4, "big")
    assert Walk().advance(bytearray(b"\xc6" + length)) is Progress.NEEDS_BYTES
    if is_violation:
        with pytest.raises(Violation, match="frame_str_bytes_max"):
            Walk().advance(bytearray(b"\xdb" + length))
    else:
        assert Walk().advance(bytearray(b"\xdb" + length)) is Progress.NEEDS_BYTES


def test_a_table_of_rows_of_the_largest_size_fits() -> None:
    """4,096 rows of 63 columns, keys counted."""
    assert frame_objects_max >= 4_096 * 63 * 2
