"""One request in progress, as its handler sees it.

State: open → ended, once. A reply, a failure, the caller's cancel, a disconnect or (for coroutine
handlers) the deadline ends it, whichever comes first. After the last three it is `abandoned`: what
the handler still says is dropped.
"""

import os
from collections.abc import Callable
from random import getrandbits
from typing import Any, Final, Protocol

from contracts.errors import COMMON, MeshError
from contracts.frames import Context
from contracts.methods import Method
from shared.access import Peer


class Deferred:
    """The type of DEFERRED."""


DEFERRED: Final = Deferred()
"""Returned by a handler that ends its call later, by `reply` or `fail`, exactly once."""
_TRACE_DIGITS: Final = 32
_trace_ids_made: Final = 64
_NO_TRACE: Final = "0" * 32
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


class Call:
    """One request: typed body, context and peer. Used on the loop's thread only.

    `trace_id` is always set, generated where the caller gave none. `received_s` and `deadline_s`
    are monotonic seconds. The handler may set `on_cancel`, which is called once after the caller
    cancelled or left (the call has ended by then: `reply` and `fail` do nothing any more), and
    `on_resume`, which is called when a reader that made `stream` return False has caught up.
    """

    ended = False
    abandoned = False
    on_cancel: Callable[[], None] | None = None
    on_resume: Callable[[], None] | None = None
    sequence = 0
    is_paused = False
    task: Any = None
    timer: Any = None

    def __init__(
        self,
        wire: Wire,
        row: Method,
        msgid: int,
        body: Any,
        context: Context,
        trace_id: str,
        peer: Peer,
        received_s: float,
        deadline_s: float,
        wants_stream: bool,
    ) -> None:
        self.wire = wire
        self.row = row
        self.msgid = msgid
        self.body = body
        self.context = context
        self.trace_id = trace_id
        self.peer = peer
        self.received_s = received_s
        self.deadline_s = deadline_s
        self.wants_stream = wants_stream

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


class TraceIds:
    """New trace ids, made some at a time: most of what one costs is the way to the generator."""

    def __init__(self) -> None:
        self._digits = ""
        self._next = 0

    def forget(self) -> None:
        """Use none of those that were made: a forked child would give them out once more."""
        self._digits = ""
        self._next = 0

    def new(self) -> str:
        """32 hexadecimal digits, never all zero."""
        start = self._next
        end = self._next = start + _TRACE_DIGITS
        if end > len(self._digits):
            bits = 4 * _TRACE_DIGITS * _trace_ids_made
            self._digits = getrandbits(bits).to_bytes(bits // 8, "big").hex()
            start, end = 0, _TRACE_DIGITS
            self._next = end
        trace_id = self._digits[start:end]
        return trace_id if trace_id != _NO_TRACE else self.new()


_trace_ids: Final = TraceIds()
os.register_at_fork(after_in_child=_trace_ids.forget)  # random's generator does so itself


def new_trace_id() -> str:
    """32 hexadecimal digits, never all zero, in a forked child others than in its parent."""
    return _trace_ids.new()
