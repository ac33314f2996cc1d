"""What stands around a body: the first bytes of responses and stream items, and the checks of what
is about to be sent. No I/O."""

import struct
from typing import Any, Final

from contracts.limits import frame_bytes_max

_frame_bytes_max: Final = frame_bytes_max
_RESPONSE_HEAD: Final = struct.Struct(">BBBIB")
_STREAM_HEAD: Final = struct.Struct(">10sBIBI")


def response_head(msgid: int) -> bytes:
    """`[1, msgid, nil,`: what comes before an encoded result."""
    return _RESPONSE_HEAD.pack(0x94, 0x01, 0xCE, msgid, 0xC0)


def stream_head(msgid: int, sequence: int) -> bytes:
    """`[2, "stream", [msgid, sequence,`: what comes before an encoded item."""
    return _STREAM_HEAD.pack(b"\x93\x02\xa6stream\x93", 0xCE, msgid, 0xCE, sequence)


def check_type(message: Any, contract: type[Any] | None) -> None:
    """Raises TypeError for a message that is not the contract's; None: there is none."""
    if type(message) is not contract:
        raise TypeError(f"{type(message).__name__} where {contract} is declared")


def check_length(length: int) -> None:
    """Raises ValueError for a message that the peer would refuse."""
    if length > _frame_bytes_max:
        raise ValueError(f"message is {length} bytes, frame_bytes_max is {frame_bytes_max}")
