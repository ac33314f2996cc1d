"""Whole messages out of what arrives, however it is cut."""

import itertools

import msgpack
from hypothesis import given
from hypothesis import strategies as st

from services.jobs.frames import Frames

MESSAGES = st.lists(
    st.one_of(st.binary(max_size=300), st.text(), st.lists(st.integers(0, 2**32))), max_size=8
)


@given(MESSAGES, st.lists(st.integers(0, 2_000), max_size=6))
def test_any_cut_of_a_stream_gives_the_same_messages(
    messages: list[object], cuts: list[int]
) -> None:
    """Each once, in order, as bytes; a chunk that is one message comes back itself."""
    packed = [msgpack.packb(message) for message in messages]
    stream = b"".join(packed)
    edges = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    frames = Frames()
    found = [
        frame
        for start, end in itertools.pairwise(edges)
        for frame in frames.feed(stream[start:end])
    ]
    assert found == packed
    assert all(type(frame) is bytes for frame in found)


def test_a_chunk_that_is_one_message_is_not_copied() -> None:
    """What makes it cheap enough for a generator of load."""
    chunk = msgpack.packb("x" * 100)
    (frame,) = Frames().feed(chunk)
    assert frame is chunk
