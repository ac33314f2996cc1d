"""Bytes of one frame to typed messages and back: the envelope first, then the method's body.

Decoders are made once for each method row. Errors of decoding become INVALID_REQUEST with every
name cut to a bound. Among duplicate keys of a map the last one wins. No I/O.
"""

import re
from collections.abc import Callable
from typing import Any, Literal, Protocol, cast

import msgspec

from contracts.errors import ErrorBody, MeshError
from contracts.frames import Context, Envelope, MessageId
from contracts.methods import Method
from shared.wire.framing import Frame
from shared.wire.heads import response_head

DECODE_ERRORS = (msgspec.MsgspecError, RecursionError)
"""What a decoder raises for any bytes whatever."""
NO_CONTEXT = Context()
name_characters_max = 64
"""Of a name that the peer chose, in an error's message."""
reason_characters_max = 512

_QUOTED = re.compile(r"`([^`]*)(`|$)")
_NIL = b"\xc0"
_UNSIGNED_BYTES = {0xCC: 1, 0xCD: 2, 0xCE: 4}
_REQUEST_OPENING_BYTES = 7
"""`[0, msgid` with the longest msgid."""

decode_envelope = cast("Callable[[Frame], Envelope]", msgspec.msgpack.Decoder(Envelope).decode)
decode_error = msgspec.msgpack.Decoder(ErrorBody).decode
decode_cancel = msgspec.msgpack.Decoder(tuple[MessageId]).decode
decode_stream = msgspec.msgpack.Decoder(tuple[MessageId, int, msgspec.Raw]).decode
encode = msgspec.msgpack.Encoder().encode
encode_into = msgspec.msgpack.Encoder().encode_into


class Addressed(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """As much of a broken request as it takes to answer it."""

    msgid: MessageId


class _ContextOnly(msgspec.Struct, frozen=True, array_like=True):
    body: msgspec.Raw
    context: Context = NO_CONTEXT


decode_addressed = msgspec.msgpack.Decoder(Addressed).decode
_decode_context_only = msgspec.msgpack.Decoder(_ContextOnly).decode


class Params(Protocol):
    """`[body]` or `[body, context]`; each method has a struct with the body's type."""

    body: Any
    context: Context


class WholeRequest(Protocol):
    """A request decoded in one pass."""

    msgid: int
    params: Params


def opening_msgid(opening: bytes) -> int | None:
    """The msgid of the request that begins with these bytes; None when no request does, or not
    in its shortest form."""
    if len(opening) < _REQUEST_OPENING_BYTES or not opening.startswith(b"\x94\x00"):
        return None
    head = opening[2]
    if head < 0x80:  # positive fixint
        return head
    width = _UNSIGNED_BYTES.get(head)
    return None if width is None else int.from_bytes(opening[3 : 3 + width], "big")


def params_decoder(row: Method) -> Callable[[msgspec.Raw], Params]:
    """Decodes the params of a method's request. Raises `DECODE_ERRORS`."""
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_params_of(row))
    return cast("Callable[[msgspec.Raw], Params]", decoder.decode)


def request_decoder(row: Method) -> Callable[[bytes], WholeRequest]:
    """Decodes a frame that is a request of this method. Raises `DECODE_ERRORS` for any other, of
    which this says nothing: the envelope's way judges it."""
    request = msgspec.defstruct(
        f"{row.name}_request",
        [("msgid", MessageId), ("method", Literal[row.name]), ("params", _params_of(row))],
        frozen=True,
        array_like=True,
        tag=0,
        forbid_unknown_fields=True,
    )
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(request)
    return cast("Callable[[bytes], WholeRequest]", decoder.decode)


def _params_of(row: Method) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        f"{row.name}_params",
        [("body", row.request), ("context", Context, NO_CONTEXT)],
        frozen=True,
        array_like=True,
        forbid_unknown_fields=True,
    )


def type_decoder(contract: Any) -> Callable[[msgspec.Raw], Any]:
    """Decodes a response or a stream's item. Raises `DECODE_ERRORS`."""
    return cast("Callable[[msgspec.Raw], Any]", msgspec.msgpack.Decoder(contract).decode)


def context_of(params: msgspec.Raw) -> Context:
    """The context of params whose body is broken; an empty one if that is broken too."""
    try:
        return _decode_context_only(params).context
    except DECODE_ERRORS:
        return NO_CONTEXT


def reason(error: BaseException) -> str:
    """A decoder's complaint with the peer's names cut, safe to show on a terminal."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = str(error)
    if len(text) > 2 * reason_characters_max:  # a name may be as long as the frame
        text = f"{text[:reason_characters_max]}…{text[-reason_characters_max:]}"
    text = _QUOTED.sub(_cut_name, text)
    text = text.replace("`$[0]", "`body").replace("`$[1]", "`context")
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return text if len(text) <= reason_characters_max else text[: reason_characters_max - 1] + "…"


def _cut_name(match: re.Match[str]) -> str:
    name = match.group(1)
    cut = name if len(name) <= name_characters_max else name[: name_characters_max - 1] + "…"
    return f"`{cut}`"


def encode_failure(msgid: int, error: MeshError, trace_id: str) -> bytes:
    """A whole response that carries an error."""
    head = response_head(msgid)[:-1]
    return b"".join((head, encode(error.body(trace_id)), _NIL))


def encode_notification(method: str, params: tuple[Any, ...]) -> bytes:
    """A whole notification."""
    return encode((2, method, params))
