"""One encoded request, response, error and notification of every method.

A frame that changes when it should not is a broken wire; these are committed under
`contracts/golden/` and compared byte for byte, by our tests and by clients in other languages.
Pure.
"""

from typing import Any

import msgspec

from contracts.errors import ERRORS, MeshError
from contracts.frames import Context
from contracts.methods import METHODS, Method
from contracts.samples import sample

MSGID = 7


def golden_frames(service: str) -> dict[str, dict[str, bytes]]:
    """By method name: `request`, `response`, `error` and `notification` as bytes.

    The notification is a `stream` item where the method streams, else the `cancel` of its call.
    """
    return {name: _frames(row) for name, row in METHODS[service].items()}


def _frames(row: Method) -> dict[str, bytes]:
    frames = {
        "request": [0, MSGID, row.name, [sample(row.request), sample(Context)]],
        "response": [1, MSGID, None, sample(row.response)],
        "error": [1, MSGID, _error(row.all_errors[-1]), None],
        "notification": [2, "cancel", [MSGID]]
        if row.item is None
        else [2, "stream", [MSGID, 0, sample(row.item)]],
    }
    return {kind: msgspec.msgpack.encode(frame) for kind, frame in frames.items()}


def _error(name: str) -> Any:
    error = MeshError(
        name,
        ERRORS[name].meaning,
        retry_after_ms=100 if ERRORS[name].retryable else None,
        details={"limit": 1, "received": "2"},
        trace_id=sample(Context)["trace_id"],
    )
    return msgspec.to_builtins(error.body(""))
