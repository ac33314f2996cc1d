"""One request in progress, as its handler sees it.

State: open → ended, once. A reply, a failure, the caller's cancel, a disconnect or (for coroutine
handlers) the deadline ends it, whichever comes first. After the last three it is `abandoned`: what
the handler still says is dropped.
"""

from collections.abc import Callable
from random import getrandbits
from typing import TYPE_CHECKING, Any, Final, Protocol

from contracts.errors import COMMON, MeshError
from contracts.frames import Context
from contracts.methods import Method
from contracts.types import UNSET
from shared.access import Peer

if TYPE_CHECKING:
    import msgspec


class Deferred:
    """The type of DEFERRED."""


DEFERRED: Final = Deferred()
"""Returned by a handler that ends its call later, by `reply` or `fail`, exactly once."""
Handler = Callable[["Call"], Any]
"""Synchronous (returns a response, or DEFERRED) or a coroutine function (runs in a task)."""


class Wire(Protocol):
    """Where a call's answer goes."""

    def answer(self, call: "Call", result: Any) -> None: ...
    def refuse(self, call: "Call", error: Exception) -> None: ...
    def stream(self, call: "Call", item: Any) -> bool: ...


class Call:
    """One request: typed body, context and peer. Used on the loop's thread only.

    `trace_id` is always set, generated where the caller gave none. `received_s` and `deadline_s`
    are monotonic seconds. The handler may set `on_cancel`, which is called once after the caller
    cancelled or left (the call has ended by then: `reply` and `fail` do nothing any more), and
    `on_resume`, which is called when a reader that made `stream` return False has caught up.
    """

    __slots__ = ("_wire", "abandoned", "body", "context", "deadline_s", "ended", "error_name",
                 "msgid", "on_cancel", "on_resume", "peer", "received_s", "row", "sequence",
                 "task", "timer", "trace_id", "wants_stream")  # fmt: skip

    def __init__(
        self,
        wire: Wire,
        row: Method,
        msgid: int,
        body: Any,
        context: Context,
        peer: Peer,
        received_s: float,
    ) -> None:
        deadline_ms, trace_id = context.deadline_ms, context.trace_id
        self._wire = wire
        self.row = row
        self.msgid = msgid
        self.body = body
        self.context = context
        self.peer = peer
        self.received_s = received_s
        self.deadline_s = (
            received_s + (row.budget.timeout_ms if deadline_ms is UNSET else deadline_ms) / 1_000
        )
        self.trace_id: str = new_trace_id() if trace_id is UNSET else trace_id
        self.wants_stream = context.stream
        self.ended = False
        self.abandoned = False
        self.error_name = ""
        self.on_cancel: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self.sequence = 0
        self.task: Any = None
        self.timer: Any = None

    def reply(self, result: "Any | msgspec.Raw") -> None:
        """End the call with its response: the row's struct, or one already encoded as Raw."""
        if self.abandoned:
            return
        assert not self.ended, f"{self.row.name} {self.msgid}: a call ends once"
        self._wire.answer(self, result)

    def fail(self, error: MeshError) -> None:
        """End the call with an error; one that the method does not declare becomes INTERNAL."""
        if self.abandoned:
            return
        assert not self.ended, f"{self.row.name} {self.msgid}: a call ends once"
        self._wire.refuse(self, error)

    def stream(self, item: Any) -> bool:
        """Send one item of the stream. False: it was sent, but the reader is slow: pause."""
        if self.abandoned:
            return False
        assert not self.ended, f"{self.row.name} {self.msgid}: an item after the end"
        return self._wire.stream(self, item)


def is_declared(row: Method, error: MeshError) -> bool:
    """Whether the method's row allows an answer with this error."""
    return error.name in COMMON or error.name in row.errors


def new_trace_id() -> str:
    """32 hexadecimal digits, never all zero. The generator is reseeded in a forked child."""
    return f"{getrandbits(128) or 1:032x}"
