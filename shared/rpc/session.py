"""What each message of a client does: start a call, refuse it, cancel one.

How calls end is in `shared.rpc.answers`.
"""

import asyncio
from typing import Any, Final

import msgspec

from contracts.errors import MeshError
from contracts.frames import Envelope, Notification, Request
from contracts.limits import in_flight_per_connection_max
from contracts.types import UNSET
from shared import logs
from shared.access import Peer
from shared.deadline import deadline_after
from shared.rpc.answers import Answers
from shared.rpc.call import DEFERRED, Call, new_trace_id
from shared.rpc.dispatch import Entry, log_defect
from shared.rpc.refusals import over_the_cap, why_refused
from shared.rpc.serving import CONNECTION_CAP, Serving
from shared.wire import codec
from shared.wire.framing import Frame

log = logs.get("shared.rpc.session")

_NO_CONTEXT: Final = codec.NO_CONTEXT
_REQUEST: Final = Request
_UNSET: Final = UNSET
_in_flight_max: Final = in_flight_per_connection_max


class Session(Answers):
    """One client of a server. On the loop's thread only."""

    __slots__ = ("_is_refused", "peer", "received_s")

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        self.peer: Peer
        self.received_s = 0.0
        self._is_refused = False

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

    def violated(self, fault: str, opening: bytes) -> None:
        """Logged; a request that breaks a limit is answered with it before the connection ends."""
        log.warning("frame_refused", reason=fault, peer_uid=self.peer.uid, peer_pid=self.peer.pid)
        msgid = codec.opening_msgid(opening)
        if msgid is None or self._is_refused:
            return
        self._serving.counters.received += 1
        self._refuse_unseen(msgid, MeshError("INVALID_REQUEST", f"{fault}; send less at once"))

    # Messages.

    def received_directly(self, chunk: bytes) -> bool:
        """A request of the commonest method that nothing speaks against."""
        serving, calls = self._serving, self.calls
        entry = serving.commonest
        if entry is None or self._is_refused or len(calls) >= _in_flight_max:
            return False
        try:
            request = entry.decode_whole(chunk)
        except codec.DECODE_ERRORS:
            return False
        msgid = request.msgid
        if entry.role not in self.peer.roles or msgid in calls:
            return False
        serving.counters.received += 1
        self._begin(entry, msgid, request.params)
        return True

    def received(self, envelope: Envelope) -> None:
        """One message: a request, a cancel, or something that is ignored."""
        if type(envelope) is _REQUEST:
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
            or len(calls) >= _in_flight_max
            or msgid in calls
        ):
            self._refuse(request, entry)
            return
        try:
            params = entry.decode(request.params)
        except codec.DECODE_ERRORS as error:
            text = f"{request.method}: {codec.reason(error)}"
            self._refuse_unseen(msgid, MeshError("INVALID_REQUEST", text), request.params)
            return
        self._begin(entry, msgid, params)

    def _begin(self, entry: Entry, msgid: int, params: codec.Params) -> None:
        """Nothing speaks against the request but, perhaps, its own deadline."""
        context, received_s = params.context, self.received_s
        if context is _NO_CONTEXT:  # by far the commonest
            deadline_s = deadline_after(received_s, entry.timeout_ms)
            call = Call(
                self, entry.row, msgid, params.body, context, new_trace_id(), self.peer,
                received_s, deadline_s, False,
            )  # fmt: skip
            self._start(entry, call)
            return
        deadline_ms, trace_id = context.deadline_ms, context.trace_id
        call = Call(
            self,
            entry.row,
            msgid,
            params.body,
            context,
            new_trace_id() if trace_id is _UNSET else trace_id,
            self.peer,
            received_s,
            deadline_after(received_s, entry.timeout_ms if deadline_ms is _UNSET else deadline_ms),
            context.stream,
        )
        if context.protocol_version is not _UNSET:
            self.protocol_version = context.protocol_version
        if deadline_ms == 0:
            self._refuse_as(msgid, self._serving.expired(call), call.trace_id)
            return
        self._start(entry, call)

    def _start(self, entry: Entry, call: Call) -> None:
        if entry.is_coroutine:
            self.register(call)
            loop = self._serving.loop
            left_s = call.deadline_s - self._serving.clock.monotonic()
            call.timer = loop.call_later(max(0.0, left_s), self.expire, call)
            call.task = loop.create_task(self._run(entry, call))
            return
        try:
            result = entry.handler(call)
            if result is not DEFERRED:
                call.reply(result)
            elif not call.ended:
                self.register(call)
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

    def _raised(self, call: Call, error: Exception) -> None:
        if call.ended:
            log_defect(call, error)
        else:
            self.refuse(call, error)

    def _refuse(self, request: Request, entry: Entry | None) -> None:
        """No handler sees it."""
        if self._is_refused:
            error = over_the_cap(self._serving.connections_max)
            self.fault = CONNECTION_CAP
        else:
            error = why_refused(
                request,
                entry,
                self.peer,
                is_in_flight=request.msgid in self.calls,
                service=self._serving.service,
            )
        self._refuse_unseen(request.msgid, error, request.params)

    def _refuse_unseen(
        self, msgid: int, error: MeshError, params: msgspec.Raw | None = None
    ) -> None:
        context = codec.NO_CONTEXT if params is None else codec.context_of(params)
        trace_id = new_trace_id() if context.trace_id is _UNSET else context.trace_id
        self._refuse_as(msgid, error, trace_id)

    def _refuse_as(self, msgid: int, error: MeshError, trace_id: str) -> None:
        self._serving.counters.refused += 1
        self.out += codec.encode_failure(msgid, error, trace_id)
        self.sent()

    def _cancel(self, params: msgspec.Raw) -> None:
        try:
            (msgid,) = codec.decode_cancel(params)
        except codec.DECODE_ERRORS:
            self._serving.counters.ignored += 1
            return
        call = self.calls.get(msgid)
        if call is not None:
            self.abandon(call, MeshError("CANCELLED", "the caller cancelled"))
