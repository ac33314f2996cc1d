"""Open-loop load on one socket: a fixed rate, timed from the intended send, retried once.

The client that a user would write: it keeps connections, reconnects when one ends or says goaway
(where the frames announce a protocol), and sends a request again once (same id) when its connection
was lost or the error is retryable. Counts what
a user would notice: refused connects, requests that failed after the retry, the slowest answer.
"""

import asyncio
import itertools
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import msgpack

from contracts.limits import PROTOCOL_VERSION
from services.jobs.ticks import send_at

connect_s_max = 2.0
answer_s_max = 5.0
_connect_pause_s = 0.002


@dataclass
class Outcome:
    """What happened. `latencies_s` is per answered request, from its intended send to its answer;
    `failed_after_s` the same of those that failed."""

    sent: int = 0
    answered: int = 0
    retried: int = 0
    refused: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    failed_after_s: list[float] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    finished_s: list[float] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Requests without an answer after their retry."""
        return sum(self.failures.values())

    def quantile_ms(self, share: float) -> float:
        """A quantile of the latencies in milliseconds; share 1.0 is the slowest."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3 if ordered else 0.0


@dataclass
class _Request:
    number: int
    due_s: float
    is_retry: bool = False


class _Connection(asyncio.Protocol):
    """One connection; what is in flight when it ends goes back to the load."""

    def __init__(self, load: "SteadyLoad") -> None:
        self._load = load
        self._unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
        self.transport: asyncio.Transport | None = None
        self.is_leaving = False
        self.pending: dict[int, _Request] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's, so there is nothing to assert.
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._unpacker.feed(data)
        for message in self._unpacker:
            if message[0] == 1:
                self._load.answered(self.pending.pop(message[1], None), message[2])
            elif message[0] == 2 and message[1] == "goaway":
                self.is_leaving = True
        if self.is_leaving and not self.pending and self.transport is not None:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        lost, self.pending = list(self.pending.values()), {}
        for request in lost:
            self._load.lost(request)

    def send(self, msgid: int, request: _Request, frame: bytes) -> None:
        """Write one request; the connection is open."""
        assert self.transport is not None
        self.pending[msgid] = request
        self.transport.write(frame)


class SteadyLoad:
    """`rate_per_s` requests on `connections`. `frame(msgid, number)` encodes request `number`,
    whose id stays the same in a retry. Run with `async with`; it ends with all answers in."""

    def __init__(
        self,
        path: str,
        frame: Callable[[int, int], bytes],
        *,
        rate_per_s: float,
        connections: int,
        retries: bool = True,
    ) -> None:
        self._retries = retries
        self.outcome = Outcome()
        self._path, self._frame = path, frame
        self._rate_per_s = rate_per_s
        self._slots: list[_Connection | None] = [None] * connections
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._waiting: list[list[_Request]] = [[] for _ in range(connections)]
        self._msgids = itertools.count()
        self._open = 0
        self._pacer: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()

    async def __aenter__(self) -> "SteadyLoad":
        pacing = send_at(self._rate_per_s, self._begin, began_s=time.monotonic())
        self._pacer = asyncio.create_task(pacing)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._pacer is not None
        self._pacer.cancel()
        ends_s = time.monotonic() + answer_s_max
        while self._open and time.monotonic() < ends_s:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), 0.1)
            except TimeoutError:
                continue
        if self._open:
            self.outcome.failures["SILENT"] = self._open
        for task in self._opening.values():
            task.cancel()
        for connection in self._slots:
            if connection is not None and connection.transport is not None:
                connection.transport.abort()

    def answered(self, request: _Request | None, error: dict[str, Any] | None) -> None:
        """A response came."""
        if request is None:
            return
        if error is not None:
            if self._retries and error.get("retryable") and not request.is_retry:
                self._retry(request)
            else:
                self._fail(str(error.get("name")), request)
            return
        now_s = time.monotonic()
        self.outcome.answered += 1
        self.outcome.latencies_s.append(now_s - request.due_s)
        self.outcome.finished_s.append(now_s)
        self._close_one()

    def lost(self, request: _Request) -> None:
        """Its connection ended before its answer."""
        if request.is_retry or not self._retries:
            self._fail("CONNECTION_LOST", request)
        else:
            self._retry(request)

    def _begin(self, number: int, due_s: float) -> None:
        self.outcome.sent += 1
        self._open += 1
        self._submit(_Request(number, due_s))

    def _retry(self, request: _Request) -> None:
        self.outcome.retried += 1
        request.is_retry = True
        self._submit(request)

    def _fail(self, name: str, request: _Request) -> None:
        self.outcome.failures[name] = self.outcome.failures.get(name, 0) + 1
        self.outcome.failed_after_s.append(time.monotonic() - request.due_s)
        self._close_one()

    def _close_one(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._idle.set()

    def _submit(self, request: _Request) -> None:
        place = request.number % len(self._slots)
        connection = self._slots[place]
        if (
            connection is not None
            and connection.transport is not None
            and not connection.is_leaving
        ):
            self._send(connection, request)
            return
        self._waiting[place].append(request)
        if place not in self._opening:
            self._opening[place] = asyncio.create_task(self._connect(place))

    def _send(self, connection: _Connection, request: _Request) -> None:
        msgid = next(self._msgids) & 0xFFFFFFFF
        connection.send(msgid, request, self._frame(msgid, request.number))

    async def _connect(self, place: int) -> None:
        try:
            connection = await self._dial()
        finally:
            del self._opening[place]
        waiting, self._waiting[place] = self._waiting[place], []
        self._slots[place] = connection
        for request in waiting:
            if connection is None:
                self._fail("REFUSED", request)
            elif connection.transport is None:
                self.lost(request)
            else:
                self._send(connection, request)

    async def _dial(self) -> _Connection | None:
        """Connect, waiting out a full backlog; a refusal is counted and tried again."""
        ends_s = time.monotonic() + connect_s_max
        while time.monotonic() < ends_s:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                sock.connect(self._path)
            except BlockingIOError:
                sock.close()
            except OSError:
                sock.close()
                self.outcome.refused += 1
            else:
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_unix_connection(
                    lambda: _Connection(self), sock=sock
                )
                return connection
            await asyncio.sleep(_connect_pause_s * random.uniform(0.5, 1.5))
        return None


def ping(msgid: int, number: int) -> bytes:
    """The cheapest request."""
    packed: bytes = msgpack.packb([0, msgid, "ping", [{}, {"protocol_version": PROTOCOL_VERSION}]])
    return packed
