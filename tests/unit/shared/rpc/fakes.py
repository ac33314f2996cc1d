"""A session without a loop or a socket: time, tasks and the transport are the test's."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from contracts.methods import METHODS
from contracts.service import Health, Metrics, Statistics
from shared.access import EVERY_ROLE, EVERY_TENANT, Access, Rights
from shared.clock import ManualClock
from shared.rpc.call import DEFERRED, Call, Handler
from shared.rpc.connection import Connection, Flusher
from shared.rpc.dispatch import dispatch_table
from shared.rpc.serving import Serving
from shared.rpc.session import Session
from shared.wire.framing import HeldBytes

INSTANCE = "orchestrator.0-00000000"


class FakeTransport:
    """Takes what is written; a test decides how much of it the reader has taken."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.written = bytearray()
        self.writes = 0
        self.unsent = 0
        self.reader_reads = True
        self.is_aborted = False
        self.is_closed = False
        self.is_paused = False
        self.limits = (0, 0)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        """As asyncio's."""
        self.limits = (high, low)

    def get_extra_info(self, name: str) -> "FakeSocket":
        """The socket."""
        assert name == "socket"
        return FakeSocket()

    def get_write_buffer_size(self) -> int:
        """What the reader has not taken."""
        return self.unsent

    def write(self, chunk: bytes) -> None:
        """Deliver, or keep for a reader that does not read."""
        assert not self.is_closed, "written after close"
        self.writes += 1
        self.written += chunk
        if not self.reader_reads:
            self.unsent += len(chunk)
            if self.unsent > self.limits[0]:
                self.connection.pause_writing()

    def read_all(self) -> None:
        """The reader catches up."""
        self.unsent, self.reader_reads = 0, True
        self.connection.resume_writing()

    def pause_reading(self) -> None:
        """As asyncio's."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """As asyncio's."""
        self.is_paused = False

    def is_closing(self) -> bool:
        """As asyncio's."""
        return self.is_closed or self.is_aborted

    def close(self) -> None:
        """As asyncio's, once everything was read."""
        if not self.is_closing():
            self.is_closed = True
            if not self.unsent:
                self.connection.connection_lost(None)

    def abort(self) -> None:
        """As asyncio's."""
        if not self.is_aborted:
            self.is_aborted = True
            self.connection.connection_lost(None)

    def messages(self) -> list[Any]:
        """Everything written so far, decoded by another implementation; forgotten then."""
        unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
        unpacker.feed(bytes(self.written))
        self.written.clear()
        return list(unpacker)


@dataclass
class Timer:
    """A callback that waits for its time."""

    delay_s: float
    callback: Callable[..., Any]
    arguments: tuple[Any, ...]
    is_cancelled: bool = False

    def cancel(self) -> None:
        """As asyncio's."""
        self.is_cancelled = True

    def fire(self) -> None:
        """Its time has come."""
        assert not self.is_cancelled, "a cancelled timer fires"
        self.callback(*self.arguments)


@dataclass
class FakeTask:
    """A coroutine that was started; the test decides whether it is cancelled or run."""

    coroutine: Any
    is_cancelled: bool = False

    def cancel(self) -> None:
        """As asyncio's, but the test looks at the flag."""
        self.is_cancelled = True

    def step(self) -> None:
        """Run it to its end, or throw its cancellation into it."""
        try:
            self.coroutine.send(None)
        except StopIteration:
            return
        raise AssertionError("the coroutine waits for something")


@dataclass
class FakeLoop:
    """Callbacks and timers, run by the test."""

    soon: list[tuple[Callable[..., Any], tuple[Any, ...]]] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    tasks: list[FakeTask] = field(default_factory=list)

    def call_soon(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """As asyncio's."""
        self.soon.append((callback, arguments))

    def call_later(self, delay_s: float, callback: Callable[..., Any], *arguments: Any) -> Timer:
        """As asyncio's."""
        self.timers.append(Timer(delay_s, callback, arguments))
        return self.timers[-1]

    def create_task(self, coroutine: Any) -> FakeTask:
        """As asyncio's."""
        self.tasks.append(FakeTask(coroutine))
        return self.tasks[-1]

    def turn(self) -> None:
        """Run what was called soon, once."""
        due, self.soon = self.soon, []
        for callback, arguments in due:
            callback(*arguments)


class FakeSocket:
    """Whose peer is process 4242 of uid and gid 1001."""

    def getsockopt(self, _level: int, _option: int, size: int) -> bytes:
        """struct ucred. Source: unix(7)."""
        credentials = struct.pack("iII", 4242, 1001, 1001)
        assert len(credentials) == size
        return credentials


def access_with(roles: frozenset[str]) -> Access:
    """Uid 1001 has these roles, for every tenant."""
    return Access({1001: Rights(roles, frozenset({EVERY_TENANT}), 1)}, owner_uid=0)


class Held:
    """A deferred handler; the test ends the calls."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.cancelled: list[int] = []

    def __call__(self, call: Call) -> Any:
        """Keep the call."""
        self.calls.append(call)
        call.on_cancel = lambda: self.cancelled.append(call.msgid)
        return DEFERRED


def unexpected(call: Call) -> None:
    """A handler that a test does not use."""
    raise AssertionError(f"{call.row.name} was called")


def handlers(**given: Handler) -> dict[str, Handler]:
    """Handlers of the orchestrator, the given ones and harmless ones."""
    harmless: dict[str, Handler] = {
        "health": lambda _: Health(
            live=True,
            ready=True,
            degraded=False,
            reasons=[],
            policy_version=0,
            uptime_s=1.0,
            service="orchestrator",
            instance=INSTANCE,
        ),
        "statistics": lambda _: Statistics(values={}),
        "metrics": lambda _: Metrics(metrics=[]),
        "infer": unexpected,
        "models": unexpected,
    }
    return {**harmless, **given}


class Stage:
    """One server's shared state, and sessions on it."""

    def __init__(
        self,
        given: Mapping[str, Handler] | None = None,
        *,
        roles: frozenset[str] = EVERY_ROLE,
        connections_max: int = 100,
        service: str = "orchestrator",
    ) -> None:
        self.loop: Any = FakeLoop()
        self.clock = ManualClock()
        access = access_with(roles)
        every = handlers(**(given or {}))
        known = {name: every.get(name, unexpected) for name in METHODS[service]}
        table = {k: v for k, v in {**known, **(given or {})}.items() if k not in OWN}
        self.serving = Serving(
            service=service,
            instance=INSTANCE,
            table=dispatch_table(service, table, instance=INSTANCE),
            access=access,
            clock=self.clock,
            connections_max=connections_max,
            loop=self.loop,
            flusher=Flusher(self.loop),
            held=HeldBytes(1 << 30),
            on_left=lambda: None,
        )

    def connect(self) -> tuple[Session, FakeTransport]:
        """A new client."""
        session = Session(self.serving)
        transport = FakeTransport(session)
        session.connection_made(transport)
        return session, transport

    @property
    def counts(self) -> dict[str, Any]:
        """The counters that are not zero."""
        return {k: v for k, v in self.serving.counters.statistics().items() if v}

    def conserves(self) -> bool:
        """Whether every request received is in exactly one place."""
        c = self.serving.counters
        return c.received == c.answered + c.refused + c.failed + c.cancelled + c.in_flight


OWN = ("ping", "describe")


def request(msgid: int, method: str, body: Any = None, context: Any = None) -> bytes:
    """One request as any client would write it."""
    params = [{} if body is None else body] + ([] if context is None else [context])
    return msgpack.packb([0, msgid, method, params])


def notification(method: str, *params: Any) -> bytes:
    """One notification."""
    return msgpack.packb([2, method, list(params)])
