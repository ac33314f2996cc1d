"""Frames as the SDK writes and reads them."""

import datetime
from typing import Any

import msgpack
import numpy as np
import pytest

from contracts.golden_frames import golden_frames
from mortise.wire import Answer, Incoming, Notice, WireError, encode_request, pack

UTC = datetime.UTC


def test_a_request_is_the_golden_frame() -> None:
    """What the SDK encodes is byte for byte what the contract's golden frame says."""
    for service in ("orchestrator", "control_plane"):
        for method, frames in golden_frames(service).items():
            _, msgid, _, (body, context) = msgpack.unpackb(frames["request"])
            assert encode_request(msgid, method, pack(body), context) == frames["request"]


def test_every_split_of_a_stream_gives_the_same_messages() -> None:
    """Frames are cut where they end, however the bytes arrive."""
    frames = golden_frames("orchestrator")["infer"]
    stream = frames["notification"] + frames["response"] + frames["error"]
    whole = list(Incoming().feed(stream))
    assert [type(message) for message in whole] == [Notice, Answer, Answer]
    for size in (1, 2, 7, 100):
        incoming = Incoming()
        chunks = [stream[place : place + size] for place in range(0, len(stream), size)]
        assert [message for chunk in chunks for message in incoming.feed(chunk)] == whole


GARBAGE = {
    "text": b"HTTP/1.1 200 OK",
    "reserved byte": b"\xc1",
    "a number": b"\x01",
    "a request": msgpack.packb([0, 1, "ping", [{}]]),
    "a response too short": msgpack.packb([1, 1, None]),
    "a text msgid": msgpack.packb([1, "1", None, {}]),
    "broken text": b"\x94\x01\x01\xc0\xa1\xff",
    "too deep": b"\x91" * 2_000,
}


@pytest.mark.parametrize("chunk", GARBAGE.values(), ids=GARBAGE)
def test_anything_else_is_an_error(chunk: bytes) -> None:
    """Bytes that are no answer and no notification end the connection."""
    with pytest.raises(WireError):
        list(Incoming().feed(chunk))


def test_instants_travel_as_timestamps() -> None:
    """Aware datetimes are exact to the microsecond; naive ones are text for the column's zone."""
    instant = datetime.datetime(2013, 7, 1, 12, 30, 15, 123_456, tzinfo=UTC)
    assert msgpack.unpackb(pack(instant), timestamp=3) == instant
    assert msgpack.unpackb(pack(instant.replace(tzinfo=None))) == "2013-07-01T12:30:15.123456"


VALUES: list[tuple[Any, Any]] = [(np.float64(0.5), 0.5), (np.int64(3), 3), (np.arange(2), [0, 1])]


@pytest.mark.parametrize(("value", "plain"), VALUES)
def test_scalars_of_array_libraries_are_numbers(value: Any, plain: Any) -> None:
    """A row may hold what a data frame gives."""
    assert msgpack.unpackb(pack({"a": value})) == {"a": plain}


def test_what_cannot_travel_is_named() -> None:
    """The type and the value are in the message."""
    with pytest.raises(TypeError, match=r"set cannot be sent: \{1\}"):
        pack({"a": {1}})
