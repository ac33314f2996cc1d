"""The conformance suite: does a live service keep the contract in our rows?

Everything goes over the socket, as any client's would. A method whose request would change state
is never called with a body that could be accepted.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from contracts.description import describe
from contracts.errors import ERRORS, ErrorBody
from contracts.golden_frames import golden_frames
from contracts.methods import METHODS, Method
from contracts.samples import sample
from contracts.types import Strict
from mortise.connection import Connection
from mortise.errors import MortiseError
from mortise.retry import Lost
from mortise.wire import Answer, encode_request, pack

ANSWER_S = 10.0
"""How long one answer is awaited; the longest budget of a call replayed here is 5 s."""
UNKNOWN_FIELD = "no_such_field"
CHANGING = frozenset(
    {"apply", "publish", "promote", "rollback", "subscribe", "acknowledge", "report", "receipts"}
)
"""Methods whose golden request is not replayed: it would commit, count or bind something."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check; `reason` says what was found when it failed."""

    name: str
    passed: bool
    reason: str = ""


class Mismatch(Exception):
    """The service answered something else than its contract says."""


def verify(path: str) -> list[Outcome]:
    """Run every check against a socket. Raises MeshDown when nothing listens."""
    peer = Peer(path)
    try:
        service = _service_of(peer)
    except (MortiseError, Mismatch) as error:
        return [Outcome("describe is answered", False, str(error))]
    finally:
        peer.close()
    return [_run(name, check, path) for name, check in _checks(service)]


class Peer:
    """A connection on which calls are written out frame by frame."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection = Connection(path, time.monotonic() + ANSWER_S)

    def ask(self, method: str, body: Any, **context: Any) -> Answer:
        """One call and its answer. Raises Lost when the connection ends instead."""
        msgid = self._connection.next_msgid()
        return self.send(encode_request(msgid, method, pack(body), context), msgid)

    def send(self, frame: bytes, msgid: int) -> Answer:
        """A frame as it is, and the answer under its msgid."""
        ends_s = time.monotonic() + ANSWER_S
        try:
            self._connection.send(frame, ends_s)
            while not isinstance(message := self._connection.receive(msgid, ends_s), Answer):
                continue
        except TimeoutError:
            raise Mismatch(f"no answer within {ANSWER_S:g} s") from None
        return message

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def _run(name: str, check: Callable[[Peer], None], path: str) -> Outcome:
    peer = Peer(path)
    try:
        check(peer)
    except (Mismatch, MortiseError, msgspec.MsgspecError) as error:
        return Outcome(name, False, str(error))
    finally:
        peer.close()
    return Outcome(name, True)


def _service_of(peer: Peer) -> str:
    answer = peer.ask("describe", {})
    service = (answer.result or {}).get("service")
    if service not in METHODS:
        raise Mismatch(f"describe answered {answer.error or service!r}, not a service of ours")
    return str(service)


def _checks(service: str) -> Iterator[tuple[str, Callable[[Peer], None]]]:
    yield "describe equals the contract", lambda peer: _describes(peer, service)
    yield "an unknown method is refused", _refuses_unknown_method
    yield "garbage closes its own connection only", _survives_garbage
    frames = golden_frames(service)
    for name, row in METHODS[service].items():
        yield f"{name}: a body of the wrong type is refused", _wrong_type(row)
        if issubclass(row.request, Strict):
            yield f"{name}: an unknown field is refused by name", _unknown_field(row)
        if name not in CHANGING:
            yield f"{name}: no time left is DEADLINE_EXCEEDED", _no_time(row)
            yield f"{name}: the golden request is answered", _golden(row, frames[name]["request"])


def _describes(peer: Peer, service: str) -> None:
    told = peer.ask("describe", {}).result
    expected = msgspec.to_builtins(describe(service, str(told.get("instance", ""))))
    for part, value in expected.items():
        if told.get(part) == value:
            continue
        if not isinstance(value, dict):
            raise Mismatch(f"{part} is {told.get(part)!r}, the contract says {value!r}")
        said = told.get(part) or {}
        names = [name for name in value.keys() | said.keys() if value.get(name) != said.get(name)]
        raise Mismatch(f"{part} differ in {', '.join(sorted(names))}")


def _refuses_unknown_method(peer: Peer) -> None:
    _expect(peer.ask("no_such_method", {}), "METHOD_UNKNOWN")


def _survives_garbage(peer: Peer) -> None:
    other = Peer(peer.path)
    try:
        other.send(b"\xc1 this is not MessagePack-RPC", 1)
    except Lost:
        after = peer.ask("ping", {})
        if after.error is not None:
            raise Mismatch(f"the neighbour got {after.error}") from None
    else:
        raise Mismatch("garbage was answered")
    finally:
        other.close()


def _wrong_type(row: Method) -> Callable[[Peer], None]:
    def check(peer: Peer) -> None:
        _expect(peer.ask(row.name, "not a map"), "INVALID_REQUEST")

    return check


def _unknown_field(row: Method) -> Callable[[Peer], None]:
    def check(peer: Peer) -> None:
        body = {**sample(row.request), UNKNOWN_FIELD: 1}
        error = _expect(peer.ask(row.name, body), "INVALID_REQUEST")
        if UNKNOWN_FIELD not in error.message:
            raise Mismatch(f"the error does not name the field: {error.message}")

    return check


def _no_time(row: Method) -> Callable[[Peer], None]:
    def check(peer: Peer) -> None:
        _expect(peer.ask(row.name, sample(row.request), deadline_ms=0), "DEADLINE_EXCEEDED")

    return check


def _golden(row: Method, frame: bytes) -> Callable[[Peer], None]:
    def check(peer: Peer) -> None:
        msgid = msgspec.msgpack.decode(frame)[1]
        answer = peer.send(frame, msgid)
        if answer.error is None:
            msgspec.msgpack.decode(pack(answer.result), type=row.response)
        else:
            error = msgspec.convert(answer.error, ErrorBody)
            if error.name not in row.all_errors or error.name == "INTERNAL":
                raise Mismatch(f"answered {error.name}: {error.message}")

    return check


def _expect(answer: Answer, name: str) -> ErrorBody:
    if answer.error is None:
        raise Mismatch(f"expected {name}, got an answer")
    error = msgspec.convert(answer.error, ErrorBody)
    if (error.name, error.code) != (name, ERRORS[name].code):
        raise Mismatch(f"expected {name}, got {error.code} {error.name}: {error.message}")
    if not error.trace_id:
        raise Mismatch(f"{name} came without a trace id")
    return error
