"""Frames are the same however a stream is split, and hostile bytes cost little."""

import itertools
import struct
from collections.abc import Iterable

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.limits import frame_bytes_max, frame_objects_max
from shared.wire.framing import WALKED_BYTES_MIN, Framer, HeldBytes
from shared.wire.walk import slice_work
from tests.unit.shared.wire import values

CHUNK = 262_144
LIMIT = 4_096


def framer(limit: int = LIMIT) -> Framer:
    """A framer with a bound of its own."""
    return Framer(HeldBytes(1 << 30), limit=limit)


def run(stream: bytes, cuts: list[int], limit: int = LIMIT) -> tuple[list[bytes], bool]:
    """The frames of a stream that arrives in pieces, and whether it broke a rule."""
    cutter = framer(limit)
    frames: list[bytes] = []
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    for start, stop in itertools.pairwise(edges):
        frames += [bytes(frame) for frame in cutter.feed(stream[start:stop])]
    return frames, cutter.fault is not None


def reference(stream: bytes, limit: int = LIMIT) -> tuple[list[bytes], bool]:
    """The same, by an independent parser that sees the whole stream at once."""
    frames, position = [], 0
    while position < len(stream):
        if stream[position] not in (0x93, 0x94):
            return frames, True
        end = _end(stream, position, 0)
        if end is None:
            return frames, len(stream) - position > limit
        if end < 0 or end - position > limit:
            return frames, True
        frames.append(stream[position:end])
        position = end
    return frames, False


_WIDTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xCA: 4,
           0xCB: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}  # fmt: skip
_LENGTHS = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),
            0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}  # fmt: skip
_ITEMS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def _end(stream: bytes, at: int, depth: int) -> int | None:
    """Where the object at `at` ends; None when the stream does first, −1 for no MessagePack."""
    if at >= len(stream):
        return None
    head = stream[at]
    at += 1
    items = 0
    if head == 0xC1:
        return -1
    if head in _WIDTHS:
        at += _WIDTHS[head]
    elif 0xA0 <= head <= 0xBF:
        at += head & 0x1F
    elif head in _LENGTHS or head in _ITEMS:
        width, extra = _LENGTHS.get(head) or _ITEMS[head]
        if at + width > len(stream):
            return None
        number = int.from_bytes(stream[at : at + width], "big")
        at += width
        if head in _LENGTHS:
            at += number + extra
        else:
            items = number * extra
    elif 0x80 <= head <= 0x8F:
        items = 2 * (head & 0x0F)
    elif 0x90 <= head <= 0x9F:
        items = head & 0x0F
    for _ in range(items):
        end = _end(stream, at, depth + 1)
        if end is None or end < 0:
            return end
        at = end
    return at if at <= len(stream) else None


@given(messages=values.streams, cuts=values.cuts)
def test_any_split_gives_the_same_frames(messages: list[bytes], cuts: list[int]) -> None:
    """The frames are the messages, wherever the chunks end."""
    assert run(b"".join(messages), cuts) == (messages, False)


@given(message=values.messages, share=st.floats(0, 1, exclude_max=True))
def test_every_prefix_is_incomplete_and_never_an_error(message: bytes, share: float) -> None:
    """Part of a frame gives no frame and no fault."""
    assert run(message[: int(len(message) * share)], []) == ([], False)


@given(
    messages=values.streams,
    noise=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
    cuts=values.cuts,
)
def test_a_mutated_stream_is_cut_as_by_an_independent_parser(
    messages: list[bytes], noise: list[tuple[int, int]], cuts: list[int]
) -> None:
    """Garbage is found in the same place by another implementation, for any split."""
    stream = bytearray(b"".join(messages))
    for position, value in noise:
        if stream:
            stream[position % len(stream)] = value
    assert run(bytes(stream), cuts) == reference(bytes(stream))


# name: (stream, frames, is a violation)
TABLE: dict[str, tuple[bytes, list[bytes], bool]] = {
    "nothing": (b"", [], False),
    "request": (b"\x94\x00\x01\xa4ping\x91\x80", [b"\x94\x00\x01\xa4ping\x91\x80"], False),
    "notification": (b"\x93\x02\xa1x\x90", [b"\x93\x02\xa1x\x90"], False),
    "two": (b"\x93\x02\xa1x\x90" * 2, [b"\x93\x02\xa1x\x90"] * 2, False),
    "head alone": (b"\x94", [], False),
    "bin of 4 GiB announced": (b"\x94\x00\x01\xc6\xff\xff\xff\xff", [], False),
    "array of 4 G items announced": (b"\x94\x00\x01\xdd\xff\xff\xff\xff\x01\x01", [], False),
    "map of 4 G pairs announced": (b"\x94\x00\x01\xdf\xff\xff\xff\xff\x01\x01", [], False),
    "a map": (b"\x81\xa1a\x01", [], True),
    "an array of two": (b"\x92\x01\x02", [], True),
    "an array of five": (b"\x95\x01\x02\x03\x04\x05", [], True),
    "a long form of an array of four": (b"\xdc\x00\x04\x00\x01\xa1x\x90", [], True),
    "text": (b"GET / HTTP/1.1\r\n\r\n", [], True),
    "the byte that is never used": (b"\x94\x00\xc1\x01\x01", [], True),
    "good, then bad": (b"\x93\x02\xa1x\x90\x00", [b"\x93\x02\xa1x\x90"], True),
    "nested 2,000 deep": (b"\x93\x02\xa1x" + b"\x91" * 2_000, [], True),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_table_whole_byte_by_byte_and_with_trailing_bytes(name: str) -> None:
    """Each row, in one chunk, in chunks of one byte, and followed by another frame's beginning."""
    stream, frames, is_violation = TABLE[name]
    assert run(stream, []) == (frames, is_violation)
    assert run(stream, list(range(len(stream)))) == (frames, is_violation)
    if frames and not is_violation:
        assert run(stream + b"\x94\x00", []) == (frames, False)


def message_of(length: int) -> bytes:
    """A message of exactly so many bytes, 300 … 65,000."""
    empty = msgpack.packb([2, "x", b"\0" * 256])
    return msgpack.packb([2, "x", b"\0" * (256 + length - len(empty))])


@pytest.mark.parametrize(("over", "is_violation"), [(-1, False), (0, False), (1, True)])
@pytest.mark.parametrize("cuts", [[], [1], [2_000], list(range(LIMIT))])
def test_the_longest_frame_is_at_the_limit(over: int, is_violation: bool, cuts: list[int]) -> None:
    """One below and at the limit pass, one above does not, however it arrives."""
    stream = message_of(LIMIT + over)
    assert run(stream, cuts) == ([] if is_violation else [stream], is_violation)


def test_a_frame_is_refused_before_it_is_whole() -> None:
    """Memory is bounded by the limit, not by what the peer announces."""
    cutter = framer()
    head = b"\x94\x00\x01\xc6\xff\xff\xff\xff"
    assert cutter.feed(head + b"\0" * (LIMIT - len(head))) == []
    assert cutter.fault is None
    cutter.feed(b"\0")
    assert cutter.fault == f"the frame is longer than frame_bytes_max, {LIMIT} bytes"
    assert cutter.opening == (head + bytes(16))[:16]
    assert cutter.pending == b""


def test_a_limit_of_zero_refuses_everything() -> None:
    """Nothing fits, so the first byte is too long."""
    assert run(b"\x93", [], limit=0) == ([], True)


def test_after_a_fault_nothing_is_given_out() -> None:
    """The connection must be closed; a good frame afterwards does not heal it."""
    cutter = framer()
    cutter.feed(b"\x00")
    assert cutter.feed(b"\x93\x02\xa1x\x90") == []
    assert cutter.fault == "not a MessagePack-RPC message"


def fed(cutter: Framer, chunks: Iterable[bytes]) -> list[bytes]:
    """What a connection does: feed, and catch up before it feeds more."""
    frames: list[bytes] = []
    for chunk in chunks:
        frames += map(bytes, cutter.feed(chunk))
        while cutter.is_behind:
            frames += map(bytes, cutter.catch_up())
    return frames


def chunks_of(stream: bytes, length: int = CHUNK) -> Iterable[bytes]:
    """The stream in chunks of a loop's largest read, or smaller."""
    return (stream[start : start + length] for start in range(0, len(stream), length))


SMALL = b"\x93\x02\xa1x\x90"
LARGE = {
    "one payload of the largest size": b"\xc6" + struct.pack(">I", frame_bytes_max - 16)
    + b"\xa5" * (frame_bytes_max - 16),
    "many payloads": msgpack.packb([b"\x93" * 1_000, "x" * 300, 1.5] * 2_000),
    "many objects": msgpack.packb([[n, -n, str(n), None] for n in range(80_000)]),
    "just walked": b"\xc6" + struct.pack(">I", WALKED_BYTES_MIN) + b"\0" * WALKED_BYTES_MIN,
    "just scanned": b"\xc6" + struct.pack(">I", WALKED_BYTES_MIN - 64)
    + b"\0" * (WALKED_BYTES_MIN - 64),
}  # fmt: skip


@pytest.mark.parametrize("length", [CHUNK, 100_003])
@pytest.mark.parametrize("name", LARGE)
def test_large_frames_and_small_ones_between_them_are_whole(name: str, length: int) -> None:
    """Scanner and walk hand over to each other in the middle of chunks."""
    large = b"\x94\x00\xcd\xff\xff\xa5infer" + LARGE[name]
    stream = SMALL + large + SMALL * 2 + large + large + SMALL
    cutter = framer(frame_bytes_max)
    assert fed(cutter, chunks_of(stream, length)) == [
        SMALL, large, SMALL, SMALL, large, large, SMALL
    ]  # fmt: skip
    assert cutter.fault is None


def test_a_bomb_by_count_is_refused_in_slices_before_it_is_whole() -> None:
    """After frame_objects_max objects, not after the 4 G that it announces."""
    cutter = framer(frame_bytes_max)
    head = b"\x94\x00\x05\xa5infer\xdd\xff\xff\xff\xff"
    consumed = slices = 0
    for chunk in chunks_of(head + b"\x01" * 2_000_000):
        cutter.feed(chunk)
        consumed += len(chunk)
        while cutter.is_behind:
            cutter.catch_up()
            slices += 1
        if cutter.fault:
            break
    assert (
        cutter.fault == f"the frame holds more objects than frame_objects_max={frame_objects_max}"
    )
    assert cutter.opening.startswith(head[:8])
    assert consumed <= frame_objects_max + CHUNK
    assert slices >= frame_objects_max // slice_work - 3


@pytest.mark.parametrize(("over", "is_violation"), [(0, False), (1, True)])
def test_the_largest_frame_is_at_the_limit_in_a_walk_too(over: int, is_violation: bool) -> None:
    """16 MiB pass, one byte more does not."""
    payload = frame_bytes_max - 16 + over
    stream = b"\x94\x00\xcd\xff\xff\xa5infer\xc6" + struct.pack(">I", payload) + b"\0" * payload
    assert len(stream) == frame_bytes_max + over
    cutter = framer(frame_bytes_max)
    assert len(fed(cutter, chunks_of(stream))) == (0 if is_violation else 1)
    assert (cutter.fault is not None) == is_violation


def test_incomplete_frames_of_all_connections_share_one_bound() -> None:
    """The connection that goes over it is at fault, and what it held is given back."""
    held = HeldBytes(1_000)
    first, second = Framer(held, limit=LIMIT), Framer(held, limit=LIMIT)
    part = message_of(2_000)[:600]
    first.feed(part)
    assert (held.held, first.fault) == (600, None)
    second.feed(part)
    assert (held.held, second.fault) == (600, "incomplete frames hold 1000 bytes already")
    first.close()
    assert held.held == 0


def test_a_completed_frame_is_no_longer_held() -> None:
    """The count is that of incomplete frames alone."""
    held = HeldBytes(10_000)
    cutter = Framer(held, limit=LIMIT)
    message = message_of(2_000)
    cutter.feed(message[:600])
    cutter.feed(message[600:] + message[:50])
    assert held.held == 50


def test_a_frame_cannot_be_written_to() -> None:
    """Decoded `bin` fields view the frame, so it must never change."""
    cutter = framer()
    message = message_of(600)
    (whole,) = cutter.feed(message)
    cutter.feed(message[:10])
    (joined,) = cutter.feed(message[10:])
    assert all(memoryview(frame).readonly for frame in (whole, joined))
