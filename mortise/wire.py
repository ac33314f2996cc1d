"""MessagePack-RPC frames as a client needs them: encode a request, cut answers from a stream.

Knows no socket and no method. `params` of a request is `[body, context]`; the body comes packed,
so that a retry sends the same bytes with what then remains of its time.
"""

import datetime
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgpack

from mortise.generated import FRAME_BYTES_MAX, InvalidRequest

CHUNK_BYTES = 262_144
"""Bytes asked of a socket at once."""
BUFFER_BYTES = 16_384
"""What an idle connection holds for its next frame."""
DATETIME_EXTENSION = 3
"""msgpack's value for `timestamp` that turns the extension into aware datetimes."""


class WireError(Exception):
    """The peer sent bytes that are not MessagePack-RPC."""


class Answer(NamedTuple):
    """A response: exactly one of error and result is not None."""

    msgid: int
    error: Any
    result: Any


class Notice(NamedTuple):
    """A notification: `stream [msgid, sequence, item]` or `goaway [reason]`."""

    method: str
    params: list[Any]


def pack(value: Any) -> bytes:
    """MessagePack of a value; aware datetimes become timestamps, naive ones RFC 3339 text.

    Raises InvalidRequest for what the wire cannot carry: integers beyond 64 bits, lone surrogates,
    maps and lists nested too deeply.
    """
    try:
        return msgpack.packb(value, default=_builtin)  # type: ignore[no-any-return]
    except (OverflowError, ValueError) as error:
        raise InvalidRequest(f"the body cannot be sent: {error}") from error


def encode_request(msgid: int, method: str, body: bytes, context: Mapping[str, Any]) -> bytes:
    """`[0, msgid, method, [body, context]]` around a packed body."""
    return b"".join((b"\x94\x00", pack(msgid), pack(method), b"\x92", body, pack(context)))


def cancel_frame(msgid: int) -> bytes:
    """`[2, "cancel", [msgid]]`."""
    return pack([2, "cancel", [msgid]])


class Incoming:
    """Cuts the bytes of one connection into answers and notices. Not thread-safe."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(
            timestamp=DATETIME_EXTENSION,
            strict_map_key=False,
            read_size=BUFFER_BYTES,  # by default it would begin with a megabyte
            max_buffer_size=FRAME_BYTES_MAX + CHUNK_BYTES,
        )

    def feed(self, chunk: bytes) -> Iterator[Answer | Notice]:
        """The whole frames that this chunk completes. Raises WireError on anything else."""
        try:
            self._unpacker.feed(chunk)
            for frame in self._unpacker:
                yield _read(frame)
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise WireError(f"the peer does not speak MessagePack-RPC ({error})") from error


def _read(frame: Any) -> Answer | Notice:
    match frame:
        case [1, int(msgid), error, result]:
            return Answer(msgid, error, result)
        case [2, str(method), list(params)]:
            return Notice(method, params)
    raise ValueError("neither a response nor a notification")


def _builtin(value: Any) -> Any:
    """What msgpack cannot pack itself: instants and the scalars of array libraries."""
    if isinstance(value, datetime.datetime):
        aware = value.tzinfo is not None
        return msgpack.Timestamp.from_datetime(value) if aware else value.isoformat()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent: {value!r:.80}")
