"""How the calls of one connection end, and how the connection itself does.

Invariant: a call is in `calls` exactly while it is deferred or its task runs, and every request
that was received ends in exactly one counter.
"""

from typing import Any, Final

import msgspec

from contracts.errors import MeshError
from contracts.limits import stream_pause_bytes
from shared.rpc.call import Call
from shared.rpc.connection import Connection
from shared.rpc.dispatch import error_to_send, log_defect
from shared.rpc.serving import Serving
from shared.wire import codec
from shared.wire.heads import check_length, check_type, response_head, stream_head

_RAW: Final = msgspec.Raw
_encode_into: Final = codec.encode_into
goaway_grace_s = 0.25
"""A client that was told to leave closes its idle connection within this, else we do."""


class Answers(Connection):
    """The calls in flight of one client. On the loop's thread only."""

    __slots__ = ("_serving", "calls", "is_leaving", "is_told", "protocol_version", "since_s")

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving.flusher, serving.held)
        self.calls: dict[int, Call] = {}
        self.protocol_version = 0
        """What the client announced; 0: it understands no notification."""
        self.is_leaving = False
        self.is_told = False
        self.since_s = serving.clock.monotonic()
        self._serving = serving

    def register(self, call: Call) -> None:
        """The call is in flight from now on."""
        self.calls[call.msgid] = call
        self._serving.counters.in_flight += 1

    def answer(self, call: Call, result: Any) -> None:
        """Send a call's response; one that is not the row's, or too long, becomes INTERNAL."""
        out = self.out
        mark = len(out)
        out += response_head(call.msgid)
        try:
            if type(result) is _RAW:
                out += result
            else:
                check_type(result, call.row.response)
                _encode_into(result, out, -1)
            check_length(len(out) - mark)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            del out[mark:]
            self.refuse(call, error)
            return
        self._serving.counters.answered += 1
        self._end(call)
        self.sent()

    def refuse(self, call: Call, error: Exception) -> None:
        """Send a call's error, mapped to what its method declares."""
        sent = error_to_send(call, error)
        self.out += codec.encode_failure(call.msgid, sent, call.trace_id)
        counters = self._serving.counters
        counters.failed += 1
        counters.internal_errors += sent.name == "INTERNAL"
        counters.deadline_exceeded += sent.name == "DEADLINE_EXCEEDED"
        self._end(call)
        self.sent()

    def stream(self, call: Call, item: Any) -> bool:
        """Send one item; False when the reader is slow."""
        out = self.out
        mark = len(out)
        out += stream_head(call.msgid, call.sequence)
        try:
            if type(item) is not _RAW:
                check_type(item, call.row.item)
            _encode_into(item, out, -1)
        except BaseException:
            del out[mark:]
            raise
        call.sequence += 1
        self._serving.counters.stream_items += 1
        self.sent()
        if self.reader_is_slow or len(self.out) >= stream_pause_bytes:
            call.is_paused = self.owes_resume = True
        return not call.is_paused

    def expire(self, call: Call) -> None:
        """A coroutine's deadline: the caller is answered, then its task is cancelled."""
        self.refuse(call, self._serving.expired(call))
        call.abandoned = True
        call.task.cancel()

    def abandon(self, call: Call, error: MeshError | None) -> None:
        """End a call that its caller cancelled, or (without an error to send) left."""
        call.abandoned = True
        self._serving.counters.cancelled += 1
        if error is not None:
            self.out += codec.encode_failure(call.msgid, error, call.trace_id)
            self.sent()
        self._end(call)
        if call.task is not None:
            call.task.cancel()
        if call.on_cancel is not None:
            try:
                call.on_cancel()
            except Exception as defect:  # noqa: BLE001 — must not take the connection along
                log_defect(call, defect)

    def _end(self, call: Call) -> None:
        call.ended = True
        if self.calls.pop(call.msgid, None) is not None:
            self._serving.counters.in_flight -= 1
            if call.timer is not None:
                call.timer.cancel()
        if self.is_leaving:
            self.close_if_idle()

    # The connection.

    def resumed(self) -> None:
        """The slow reader caught up: its streams go on."""
        for call in [call for call in self.calls.values() if call.is_paused]:
            call.is_paused = False
            if call.on_resume is not None:
                call.on_resume()

    def lost(self) -> None:
        """Every call still in flight ends as cancelled."""
        for call in list(self.calls.values()):
            self.abandon(call, None)
        self._serving.leave(self)

    def go_away(self, reason: str) -> None:
        """Ask the client to leave: told if it understands, else closed when nothing is in flight.

        One that was told closes the connection itself; after `goaway_grace_s` we do it once
        nothing is in flight.
        """
        if self.is_told or self.is_leaving:
            return
        if not self.protocol_version:
            self.is_leaving = True
            self.close_if_idle()
            return
        self.is_told = True
        self._serving.counters.goaways += 1
        self.out += codec.encode_notification("goaway", (reason,))
        self.sent()
        self._serving.loop.call_later(goaway_grace_s, self._leave)

    def _leave(self) -> None:
        self.is_leaving = True
        self.close_if_idle()

    def close_if_idle(self) -> None:
        """Close unless a call is in flight; the end of the last one asks again."""
        if not self.calls:
            self.close()
