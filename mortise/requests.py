"""One call as both clients make it: its body, its frame, and what its answer says. No I/O."""

import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from mortise.errors import MortiseError
from mortise.generated import (
    ERRORS,
    FRAME_BYTES_MAX,
    METHODS,
    PROTOCOL_VERSION,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
)
from mortise.tensors import encode_inputs, token_rows
from mortise.wire import Answer, encode_request, pack

TIMEOUT_S_UNKNOWN = 5.0
"""For a method that this SDK does not know; it is also taken as not idempotent."""


class Call(NamedTuple):
    """One call, the same on every attempt: body, trace id and so the id inside the body."""

    method: str
    body: bytes
    trace_id: str
    timeout_s: float
    is_idempotent: bool


def new_call(
    service: str, method: str, body: bytes, trace_id: str, timeout_s: float | None
) -> Call:
    """A call with the method table's idempotence, and its time-out unless one is given."""
    row = METHODS.get(service, {}).get(method)
    default_s = TIMEOUT_S_UNKNOWN if row is None else row.timeout_ms / 1_000
    seconds = default_s if timeout_s is None else timeout_s
    return Call(method, body, trace_id, seconds, row is not None and row.idempotent)


def new_trace_id() -> str:
    """A W3C trace id: 32 lower-case hexadecimal digits, random."""
    return os.urandom(16).hex()


def infer_body(
    model: str, trace_id: str, rows: Any, inputs: Any, text: Any, options: Mapping[str, Any]
) -> bytes:
    """The packed body of `infer`. One row, one text, or the ids of one row may stand for a list of
    one.

    The id is the trace id unless given, so that a retry is billed once.
    """
    body: dict[str, Any] = {"model_name": model, "id": trace_id, **options}
    if rows is not None:
        body["rows"] = [rows] if isinstance(rows, Mapping) else list(rows)
    if inputs is not None:
        body["inputs"] = encode_inputs(inputs)
    if text is not None:
        body["text"] = [text] if isinstance(text, str) else list(text)
    for name in ("input_ids", "attention_mask"):
        if body.get(name) is not None:
            body[name] = token_rows(body[name])
    return pack({name: value for name, value in body.items() if value is not None})


def request_frame(msgid: int, call: Call, remaining_s: float, asks_items: bool) -> bytes:
    """The frame of an attempt that has `remaining_s` left.

    Raises InvalidRequest past `frame_bytes_max`: the peer would only close the connection.
    """
    context: dict[str, Any] = {
        "trace_id": call.trace_id,
        # Up: less than a millisecond is not "expired"; the client keeps its own time exactly.
        "deadline_ms": max(0, math.ceil(remaining_s * 1_000)),
        "protocol_version": PROTOCOL_VERSION,
    }
    if asks_items:
        context["stream"] = True
    frame = encode_request(msgid, call.method, call.body, context)
    if len(frame) > FRAME_BYTES_MAX:
        raise InvalidRequest(
            f"the request is {len(frame)} bytes long, frame_bytes_max is {FRAME_BYTES_MAX}",
            trace_id=call.trace_id,
        )
    return frame


def result_of(answer: Answer, call: Call) -> dict[str, Any]:
    """The result of an answer. Raises its error."""
    if answer.error is not None:
        raise _error_of(answer.error, call)
    if not isinstance(answer.result, dict):
        received = type(answer.result).__name__
        raise Internal(f"{call.method} answered with {received}, not with a map")
    return answer.result


def _error_of(body: Any, call: Call) -> MortiseError:
    """The exception for an error body; a name not in the table keeps the base class.

    The peer knows the deadline in whole milliseconds; what the caller allowed is said where that
    is finer.
    """
    fields: dict[str, Any] = body if isinstance(body, dict) else {"message": str(body)}
    name = str(fields.get("name", "UNKNOWN"))
    error = ERRORS.get(name, MortiseError)(
        str(fields.get("message", "")),
        trace_id=str(fields.get("trace_id") or call.trace_id),
        retry_after_ms=fields.get("retry_after_ms"),
        details=fields.get("details"),
    )
    if name not in ERRORS:
        error.name, error.code = name, fields.get("code", 0)
        error.retryable = fields.get("retryable", False)
    if isinstance(error, DeadlineExceeded) and call.timeout_s < 0.001:
        error.message += f" (the caller allowed {call.timeout_s * 1_000:g} ms)"
        error.args = (error.message,)
    return error
