"""One request in progress, as its handler sees it.

State: open → ended, once. A reply, a failure, the caller's cancel, a disconnect or (for coroutine
handlers) the deadline ends it, whichever comes first. After the last three it is `abandoned`: what
the handler still says is dropped.
"""

from collections.abc import Callable
from random import getrandbits
from typing import Any, Final, Protocol

import msgspec

from contracts.errors import COMMON, MeshError
from contracts.frames import Context
from contracts.methods import Method
from shared.access import Peer


class Deferred:
    """The type of DEFERRED."""


DEFERRED: Final = Deferred()
"""Returned by a handler that ends its call later, by `reply` or `fail`, exactly once."""
Handler = Callable[["Call"], Any]
"""Synchronous (returns a response, or DEFERRED) or a coroutine function (runs in a task)."""


class Wire(Protocol):
    """Where a call's answer goes."""

    def answer(self, call: "Call", result: Any) -> None:
        """Send the response and end the call."""

    def refuse(self, call: "Call", error: Exception) -> None:
        """Send the error and end the call."""

    def stream(self, call: "Call", item: Any) -> bool:
        """Send an item; False when the reader is slow."""


# A Struct though it crosses no border: made once per request, and twice as fast as with slots.
class Call(msgspec.Struct, eq=False):
    """One request: typed body, context and peer. Used on the loop's thread only.

    `trace_id` is always set, generated where the caller gave none. `received_s` and `deadline_s`
    are monotonic seconds. The handler may set `on_cancel`, which is called once after the caller
    cancelled or left (the call has ended by then: `reply` and `fail` do nothing any more), and
    `on_resume`, which is called when a reader that made `stream` return False has caught up.
    """

    wire: Wire
    row: Method
    msgid: int
    body: Any
    context: Context
    trace_id: str
    peer: Peer
    received_s: float
    deadline_s: float
    wants_stream: bool
    ended: bool = False
    abandoned: bool = False
    on_cancel: Callable[[], None] | None = None
    on_resume: Callable[[], None] | None = None
    sequence: int = 0
    is_paused: bool = False
    task: Any = None
    timer: Any = None

    def reply(self, result: Any) -> None:
        """End the call with its response: the row's struct, or one already encoded as Raw."""
        if not self.abandoned:
            assert not self.ended, f"{self.row.name} {self.msgid}: a call ends once"
            self.wire.answer(self, result)

    def fail(self, error: MeshError) -> None:
        """End the call with an error; one that the method does not declare becomes INTERNAL."""
        if not self.abandoned:
            assert not self.ended, f"{self.row.name} {self.msgid}: a call ends once"
            self.wire.refuse(self, error)

    def stream(self, item: Any) -> bool:
        """Send one item of the stream. False: it was sent, but the reader is slow: pause."""
        if self.abandoned:
            return False
        assert not self.ended, f"{self.row.name} {self.msgid}: an item after the end"
        return self.wire.stream(self, item)


def is_declared(row: Method, error: MeshError) -> bool:
    """Whether the method's row allows an answer with this error."""
    return error.name in COMMON or error.name in row.errors


def new_trace_id() -> str:
    """32 hexadecimal digits, never all zero. The generator is reseeded in a forked child."""
    return (getrandbits(128) or 1).to_bytes(16, "big").hex()
