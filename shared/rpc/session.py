"""A server's end of one connection: its calls in flight, and what each message does to them.

Invariant: a call is in `calls` exactly while it is deferred or its task runs, and every request
that was received ends in exactly one counter.
"""

import asyncio
from typing import Any

import msgspec

from contracts.errors import MeshError
from contracts.frames import Envelope, Notification, Request
from contracts.limits import frame_bytes_max, in_flight_per_connection_max, stream_pause_bytes
from contracts.types import UNSET
from shared.access import Peer
from shared.rpc.call import DEFERRED, Call, new_trace_id
from shared.rpc.connection import Connection
from shared.rpc.dispatch import Entry, error_to_send, log_defect
from shared.rpc.serving import CONNECTION_CAP, Serving
from shared.wire import codec
from shared.wire.framing import Frame

retry_after_ms = 100
"""Hint to a caller that met one of our bounds."""
goaway_grace_s = 0.25
"""A client that was told to leave closes its idle connection within this, else we do."""


class Session(Connection):
    """The calls of one client. On the loop's thread only."""

    __slots__ = ("_is_refused", "_serving", "calls", "is_leaving", "is_told", "peer",
                 "protocol_version", "received_s", "since_s")  # fmt: skip

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving.flusher, serving.held)
        self.calls: dict[int, Call] = {}
        self.protocol_version = 0
        """What the client announced; 0: it understands no notification."""
        self.is_leaving = False
        self.received_s = 0.0
        self.since_s = serving.clock.monotonic()
        self.peer: Peer
        self._serving = serving
        self._is_refused = False
        self.is_told = False

    # The connection.

    def connection_made(self, transport: Any) -> None:
        """The loop's: a client connected; over the cap its first request will be refused."""
        super().connection_made(transport)
        self.peer = self._serving.access.peer(transport.get_extra_info("socket"))
        self._is_refused = not self._serving.admit(self)

    def chunk_arrived(self) -> None:
        """One reading of the clock serves every request of the chunk."""
        self.received_s = self._serving.clock.monotonic()

    def undecodable(self, frame: Frame) -> bool:
        """A request that is none: answered if it has a msgid, else the connection is closed."""
        try:
            msgid = codec.decode_addressed(frame).msgid
        except codec.DECODE_ERRORS:
            return False
        self._serving.counters.received += 1
        text = "the request is not [0, msgid, method, [body, context?]]"
        self._refuse_unseen(msgid, MeshError("INVALID_REQUEST", text))
        return True

    def resumed(self) -> None:
        """The slow reader caught up: its streams go on."""
        for call in [call for call in self.calls.values() if call.is_paused]:
            call.is_paused = False
            if call.on_resume is not None:
                call.on_resume()

    def lost(self) -> None:
        """Every call still in flight ends as cancelled."""
        for call in list(self.calls.values()):
            self._abandon(call, None)
        self._serving.leave(self)

    # Messages.

    def received(self, envelope: Envelope) -> None:
        """One message: a request, a cancel, or something that is ignored."""
        if type(envelope) is Request:
            self._requested(envelope)
        elif type(envelope) is Notification and envelope.method == "cancel":
            self._cancel(envelope.params)
        else:
            self._serving.counters.ignored += 1

    def _requested(self, request: Request) -> None:
        serving = self._serving
        serving.counters.received += 1
        msgid, calls = request.msgid, self.calls
        entry = serving.table.get(request.method)
        if (
            entry is None
            or self._is_refused
            or entry.role not in self.peer.roles
            or len(calls) >= in_flight_per_connection_max
            or msgid in calls
        ):
            self._refuse_unseen(msgid, self._refusal(request, entry), request.params)
            return
        try:
            params = entry.decode(request.params)
        except codec.DECODE_ERRORS as error:
            text = f"{request.method}: {codec.reason(error)}"
            self._refuse_unseen(msgid, MeshError("INVALID_REQUEST", text), request.params)
            return
        context = params.context
        received_s = self.received_s
        deadline_ms, trace_id = context.deadline_ms, context.trace_id
        call = Call(
            self,
            entry.row,
            msgid,
            params.body,
            context,
            new_trace_id() if trace_id is UNSET else trace_id,
            self.peer,
            received_s,
            received_s + (entry.timeout_s if deadline_ms is UNSET else deadline_ms / 1_000),
            context.stream,
        )
        if context.protocol_version is not UNSET:
            self.protocol_version = context.protocol_version
        if deadline_ms == 0:
            self._refuse_unseen(msgid, serving.expired(call), request.params)
            return
        self._start(entry, call)

    def _start(self, entry: Entry, call: Call) -> None:
        if entry.is_coroutine:
            self._register(call)
            loop = self._serving.loop
            left_s = call.deadline_s - self._serving.clock.monotonic()
            call.timer = loop.call_later(max(0.0, left_s), self._expire, call)
            call.task = loop.create_task(self._run(entry, call))
            return
        try:
            result = entry.handler(call)
            if result is not DEFERRED:
                call.reply(result)
            elif not call.ended:
                self._register(call)
        except Exception as error:  # noqa: BLE001 — the edge where handlers' errors are mapped
            self._raised(call, error)

    async def _run(self, entry: Entry, call: Call) -> None:
        try:
            result = await entry.handler(call)
            if result is not DEFERRED:
                call.reply(result)
        except asyncio.CancelledError:
            if not call.ended:
                call.fail(MeshError("CANCELLED", "the service stops"))
            raise
        except Exception as error:  # noqa: BLE001 — the edge where handlers' errors are mapped
            self._raised(call, error)

    def _register(self, call: Call) -> None:
        self.calls[call.msgid] = call
        self._serving.counters.in_flight += 1

    def _raised(self, call: Call, error: Exception) -> None:
        if call.ended:
            log_defect(call, error)
        else:
            self.refuse(call, error)

    # Refusals: no handler saw the request.

    def _refusal(self, request: Request, entry: Entry | None) -> MeshError:
        method = request.method
        if self._is_refused:
            text = f"connections_max is {self._serving.connections_max}"
            return MeshError("OVERLOADED", text, retry_after_ms=retry_after_ms)
        if entry is None:
            return MeshError("METHOD_UNKNOWN", f"no method {method!a} on {self._serving.service}")
        if entry.role not in self.peer.roles:
            text = f"{method} needs the role {entry.role}, uid {self.peer.uid} lacks it"
            return MeshError("PERMISSION_DENIED", text)
        if request.msgid in self.calls:
            return MeshError("INVALID_REQUEST", f"msgid {request.msgid} is in flight already")
        text = f"in_flight_per_connection_max is {in_flight_per_connection_max}"
        return MeshError("OVERLOADED", text, retry_after_ms=retry_after_ms)

    def _refuse_unseen(
        self, msgid: int, error: MeshError, params: msgspec.Raw | None = None
    ) -> None:
        self._serving.counters.refused += 1
        context = codec.NO_CONTEXT if params is None else codec.context_of(params)
        trace_id = new_trace_id() if context.trace_id is UNSET else context.trace_id
        self.out += codec.encode_failure(msgid, error, trace_id)
        self.sent()
        if self._is_refused:
            self.fault = CONNECTION_CAP

    # Ends of calls.

    def answer(self, call: Call, result: Any) -> None:
        """Send a call's response; one that is not the row's, or too long, becomes INTERNAL."""
        out = self.out
        mark = len(out)
        out += codec.response_head(call.msgid)
        try:
            if type(result) is not msgspec.Raw:
                codec.check_type(result, call.row.response)
            codec.encode_into(result, out, -1)
            if len(out) - mark > frame_bytes_max:
                raise codec.too_long(len(out) - mark)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            del out[mark:]
            self.refuse(call, error)
            return
        self._serving.counters.answered += 1
        self._end(call, "")
        self.sent()

    def refuse(self, call: Call, error: Exception) -> None:
        """Send a call's error, mapped to what its method declares."""
        sent = error_to_send(call, error)
        self.out += codec.encode_failure(call.msgid, sent, call.trace_id)
        counters = self._serving.counters
        counters.failed += 1
        counters.internal_errors += sent.name == "INTERNAL"
        counters.deadline_exceeded += sent.name == "DEADLINE_EXCEEDED"
        self._end(call, sent.name)
        self.sent()

    def stream(self, call: Call, item: Any) -> bool:
        """Send one item; False when the reader is slow."""
        out = self.out
        mark = len(out)
        out += codec.stream_head(call.msgid, call.sequence)
        try:
            if type(item) is not msgspec.Raw:
                codec.check_type(item, call.row.item)
            codec.encode_into(item, out, -1)
        except BaseException:
            del out[mark:]
            raise
        call.sequence += 1
        self._serving.counters.stream_items += 1
        self.sent()
        if self.reader_is_slow or len(self.out) >= stream_pause_bytes:
            call.is_paused = self.owes_resume = True
        return not call.is_paused

    def _cancel(self, params: msgspec.Raw) -> None:
        try:
            (msgid,) = codec.decode_cancel(params)
        except codec.DECODE_ERRORS:
            self._serving.counters.ignored += 1
            return
        call = self.calls.get(msgid)
        if call is not None:
            self._abandon(call, MeshError("CANCELLED", "the caller cancelled"))

    def _expire(self, call: Call) -> None:
        """A coroutine's deadline: the caller is answered, then its task is cancelled."""
        self.refuse(call, self._serving.expired(call))
        call.abandoned = True
        call.task.cancel()

    def _abandon(self, call: Call, error: MeshError | None) -> None:
        call.abandoned = True
        self._serving.counters.cancelled += 1
        if error is not None:
            self.out += codec.encode_failure(call.msgid, error, call.trace_id)
            self.sent()
        self._end(call, "CANCELLED")
        if call.task is not None:
            call.task.cancel()
        if call.on_cancel is not None:
            try:
                call.on_cancel()
            except Exception as defect:  # noqa: BLE001 — must not take the connection along
                log_defect(call, defect)

    def _end(self, call: Call, error_name: str) -> None:
        call.ended = True
        call.error_name = error_name
        serving = self._serving
        if self.calls.pop(call.msgid, None) is not None:
            serving.counters.in_flight -= 1
            if call.timer is not None:
                call.timer.cancel()
        if serving.hooks is not None:
            serving.hooks.ended(call)
        if self.is_leaving:
            self.close_if_idle()

    # Leaving.

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
