"""A client's end of one connection: requests waiting for their answers.

Invariant: a msgid is in `waiting` from its request until its answer, its `forget` or the loss of
the connection, and its `on_answer` is called at most once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from contracts.errors import MeshError
from contracts.frames import Envelope, Notification, Response
from contracts.limits import PROTOCOL_VERSION, frame_bytes_max, in_flight_per_connection_max
from contracts.methods import Method
from shared.rpc.connection import Connection, Flusher
from shared.wire import codec
from shared.wire.framing import HeldBytes
from shared.wire.heads import check_length

OnAnswer = Callable[[Any | None, MeshError | None], None]
OnItem = Callable[[Any], None]
_NIL = b"\xc0"
_MSGID_MASK = 2**32 - 1


class ConnectionLost(MeshError):
    """UNAVAILABLE: the connection went away with the request, nobody knows how far it got."""

    def __init__(self, message: str) -> None:
        super().__init__("UNAVAILABLE", message)


@dataclass(frozen=True, slots=True)
class RemoteMethod:
    """A method as its caller needs it, with its decoders."""

    row: Method
    decode_response: Callable[[msgspec.Raw], Any]
    decode_item: Callable[[msgspec.Raw], Any] | None


def remote_methods(rows: Mapping[str, Method]) -> dict[str, RemoteMethod]:
    """Every method of a service, by name."""
    return {
        name: RemoteMethod(
            row=row,
            decode_response=codec.type_decoder(row.response),
            decode_item=None if row.item is None else codec.type_decoder(row.item),
        )
        for name, row in rows.items()
    }


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request without its answer."""

    method: RemoteMethod
    on_answer: OnAnswer
    on_item: OnItem | None


class Link(Connection):
    """Requests and answers of one connection. On the loop's thread only.

    `msgids` is shared by the links of one client, so that a msgid names one request for all.
    """

    __slots__ = ("_is_announced", "_msgids", "_on_goaway", "_on_lost", "is_leaving", "waiting")

    def __init__(
        self,
        flusher: Flusher,
        msgids: Iterator[int],
        on_goaway: Callable[["Link"], None],
        on_lost: Callable[["Link"], None],
    ) -> None:
        super().__init__(flusher, HeldBytes(frame_bytes_max))
        self.waiting: dict[int, Waiting] = {}
        self.is_leaving = False
        """The server said goaway: nothing new is sent, and the last answer closes."""
        self._msgids = msgids
        self._is_announced = False
        self._on_goaway = on_goaway
        self._on_lost = on_lost

    def ask(
        self,
        method: RemoteMethod,
        body: Any,
        on_answer: OnAnswer,
        *,
        trace_id: str = "",
        deadline_ms: int | None = None,
        on_item: OnItem | None = None,
    ) -> int:
        """Send a request, return its msgid; `on_answer` is called once, in a later loop turn.

        Raises INVALID_REQUEST for a body that is too long, OVERLOADED with
        `in_flight_per_connection_max` requests waiting.
        """
        row = method.row
        if len(self.waiting) >= in_flight_per_connection_max:
            raise MeshError(
                "OVERLOADED",
                f"{row.name}: in_flight_per_connection_max is {in_flight_per_connection_max}",
                details={"reason": "connection_in_flight"},
            )
        msgid = self._free_msgid()
        out = self.out
        mark = len(out)
        context = self._context(trace_id, deadline_ms, on_item is not None)
        params = (body, context) if context else (body,)
        try:
            codec.encode_into((0, msgid, row.name, params), out, -1)
            check_length(len(out) - mark)
        except ValueError as error:
            del out[mark:]
            raise MeshError("INVALID_REQUEST", f"{row.name}: {error}") from None
        except BaseException:
            del out[mark:]
            raise
        self.waiting[msgid] = Waiting(method, on_answer, on_item)
        self.sent()
        return msgid

    def forget(self, msgid: int) -> None:
        """Tell the server that nobody waits any more; the answer will be ignored."""
        if self.waiting.pop(msgid, None) is None:
            return
        self.out += codec.encode_notification("cancel", (msgid,))
        self.sent()
        self._close_if_done()

    def _context(self, trace_id: str, deadline_ms: int | None, stream: bool) -> dict[str, Any]:
        """The given fields of a `contracts.frames.Context`.

        Our protocol is announced once per connection, so that the server may send goaway.
        """
        context: dict[str, Any] = {}
        if trace_id:
            context["trace_id"] = trace_id
        if deadline_ms is not None:
            context["deadline_ms"] = deadline_ms
        if stream:
            context["stream"] = True
        if not self._is_announced:
            self._is_announced = True
            context["protocol_version"] = PROTOCOL_VERSION
        return context

    def _free_msgid(self) -> int:
        while True:  # ends: far fewer are waiting than there are numbers
            msgid = next(self._msgids) & _MSGID_MASK
            if msgid not in self.waiting:
                return msgid

    def received(self, envelope: Envelope) -> None:
        """An answer, an item, goaway; anything else is ignored."""
        if type(envelope) is Response:
            self._answered(envelope)
        elif type(envelope) is Notification:
            if envelope.method == "stream":
                self._item(envelope)
            elif envelope.method == "goaway":
                self.is_leaving = True
                self._on_goaway(self)
                self._close_if_done()

    def _answered(self, response: Response) -> None:
        waiting = self.waiting.pop(response.msgid, None)
        if waiting is None:
            return
        try:
            if bytes(response.error) == _NIL:
                result, error = waiting.method.decode_response(response.result), None
            else:
                result, error = None, MeshError.from_body(codec.decode_error(response.error))
        except codec.DECODE_ERRORS as broken:
            text = (
                f"{waiting.method.row.name}: the answer breaks the contract: {codec.reason(broken)}"
            )
            result, error = None, MeshError("INTERNAL", text)
        waiting.on_answer(result, error)
        if self.is_leaving:
            self._close_if_done()

    def _item(self, envelope: Notification) -> None:
        try:
            msgid, _, raw = codec.decode_stream(envelope.params)
            waiting = self.waiting.get(msgid)
            if waiting is None or waiting.on_item is None or waiting.method.decode_item is None:
                return
            item = waiting.method.decode_item(raw)
        except codec.DECODE_ERRORS:
            self.fault = "a stream item breaks the contract"
            return
        waiting.on_item(item)

    def _close_if_done(self) -> None:
        if self.is_leaving and not self.waiting:
            self.close()

    def lost(self) -> None:
        """Everybody who waits gets UNAVAILABLE."""
        waiting, self.waiting = self.waiting, {}
        self._on_lost(self)
        why = self.fault or "connection lost"
        for request in waiting.values():
            request.on_answer(None, ConnectionLost(f"{request.method.row.name}: {why}"))
