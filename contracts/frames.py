"""MessagePack-RPC envelopes: request, response, notification, and the context of a request.

The envelope is decoded first with `params` left raw, so that an invalid body is still answered
under its msgid. Source: the public MessagePack-RPC specification.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from contracts.types import UNSET, Strict, TraceId, UnsetType

MessageId = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Request(msgspec.Struct, frozen=True, array_like=True, tag=0, forbid_unknown_fields=True):
    """`[0, msgid, method, params]`; params is `[body]` or `[body, context]`."""

    msgid: MessageId
    method: Annotated[str, Meta(max_length=64)]
    params: msgspec.Raw


class Response(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True):
    """`[1, msgid, error, result]`; exactly one of error and result is nil."""

    msgid: MessageId
    error: msgspec.Raw
    result: msgspec.Raw


class Notification(msgspec.Struct, frozen=True, array_like=True, tag=2, forbid_unknown_fields=True):
    """`[2, method, params]`: cancel [msgid], stream [msgid, sequence, item], goaway [reason]."""

    method: Annotated[str, Meta(max_length=64)]
    params: msgspec.Raw


Envelope = Request | Response | Notification


class Context(Strict, frozen=True, kw_only=True):
    """What travels beside a body. `deadline_ms` is what remains when the frame is received."""

    trace_id: TraceId | UnsetType = UNSET
    deadline_ms: Annotated[int, Meta(ge=0, le=86_400_000)] | UnsetType = UNSET
    stream: bool = False
    protocol_version: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
