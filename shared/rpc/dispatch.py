"""From a method's row to its handler, and from what a handler raised to the error that is sent.

The table is made from `contracts.methods`, so a handler without a row, or a row without a handler,
stops the process at its start.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from contracts.description import describe
from contracts.errors import MeshError
from contracts.methods import METHODS, Method
from contracts.types import UNSET
from shared import logs
from shared.rpc.call import Call, Handler, is_declared
from shared.wire.codec import Params, WholeRequest, encode, params_decoder, request_decoder

log = logs.get("shared.rpc")

OWN = ("ping", "describe")
"""Methods that the server answers itself."""
COMMONEST = {"orchestrator": "infer", "model_runtime": "execute"}
"""The method that nearly all requests of a service ask for: tried first, in one pass."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One method as it is served."""

    row: Method
    role: str
    timeout_ms: int
    handler: Handler
    decode: Callable[[msgspec.Raw], Params]
    decode_whole: Callable[[bytes], WholeRequest]
    is_coroutine: bool


def dispatch_table(
    service: str, handlers: Mapping[str, Handler], *, instance: str
) -> dict[str, Entry]:
    """Every method of the service with its handler, by name."""
    rows = METHODS[service]
    expected = set(rows) - set(OWN)
    missing, extra = sorted(expected - set(handlers)), sorted(set(handlers) - expected)
    assert not missing, f"{service}: no handler for {', '.join(missing)}"
    assert not extra, f"{service}: a handler without a method row: {', '.join(extra)}"
    every = {**handlers, **_own_handlers(service, instance)}
    return {
        name: Entry(
            row=row,
            role=row.role,
            timeout_ms=row.budget.timeout_ms,
            handler=every[name],
            decode=params_decoder(row),
            decode_whole=request_decoder(row),
            is_coroutine=inspect.iscoroutinefunction(every[name]),
        )
        for name, row in rows.items()
    }


def _own_handlers(service: str, instance: str) -> dict[str, Handler]:
    nothing = msgspec.Raw(encode({}))
    described: list[msgspec.Raw] = []

    def ping(_call: Call) -> msgspec.Raw:
        return nothing

    async def answer_describe(_call: Call) -> msgspec.Raw:
        if not described:  # the schemas take up to 50 ms: made at the first call, beside the loop
            described.append(await asyncio.to_thread(_described, service, instance))
        return described[0]

    return {"ping": ping, "describe": answer_describe}


def _described(service: str, instance: str) -> msgspec.Raw:
    return msgspec.Raw(encode(describe(service, instance)))


def error_to_send(call: Call, error: Exception) -> MeshError:
    """What the caller is told of an exception: a declared error as it is, all else INTERNAL.

    The traceback of the rest goes to the log under the trace id; its text never to the caller.
    """
    if isinstance(error, MeshError) and is_declared(call.row, error):
        return error
    log_defect(call, error)
    return MeshError("INTERNAL", "a defect of ours; the log has it under the trace id")


def log_defect(call: Call, error: Exception) -> None:
    """The traceback of what a handler should not have raised, under the request's ids."""
    logs.request(
        log,
        trace_id=call.trace_id,
        request_id=_text(call.body, "id") or call.trace_id,
        tenant_id=_text(call.body, "tenant_id") or logs.NONE,
        model_version=_text(call.body, "model_version") or logs.NONE,
    ).error("handler_failed", method=call.row.name, exc_info=error)


def _text(body: Any, field: str) -> str:
    value = getattr(body, field, UNSET)
    return value if isinstance(value, str) else ""
