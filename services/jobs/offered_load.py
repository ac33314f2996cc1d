"""An open loop of requests on a service's socket, each timed from when it was due.

Not retried, not held back: a request leaves at its time whether or not others were answered, so a
slow server cannot slow its own measurement. The generator measures itself too: how late it sent
and how much of a core it used.
"""

import asyncio
import random
import resource
import time
from array import array
from dataclasses import dataclass, field
from typing import Any

import msgpack

from services.jobs.frames import Frames
from services.jobs.ticks import send_at

CONNECTIONS = 16
IN_FLIGHT_MAX = 20_000
"""Beyond it a request is counted as unsent: the server is far behind, and memory is bounded."""
LAST_ANSWERS_S = 5.0
"""How long answers are awaited after the last request."""
REDIAL_S = 0.02
_FIRST_MSGID = 2**16
"""From here on MessagePack writes a msgid with five bytes, which stand at a fixed place."""
_FIRST_ID = random.SystemRandom().getrandbits(62)
"""Requests of another run have other ids: the same again would be retries, counted once."""
_MSGID_MAX = 2**32 - 1
_ANSWER_HEAD = b"\x94\x01\xce"
_NIL = 0xC0
ID_MARK = "bench-0000000000000000"
_ID_DIGITS = 16


@dataclass
class Measured:
    """One stretch of load. Latencies and lags in seconds; a lag is how late a request was sent."""

    offered_per_s: float
    seconds: float
    sent: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    latencies_s: "array[float]" = field(default_factory=lambda: array("d"))
    lags_s: "array[float]" = field(default_factory=lambda: array("d"))
    generator_cpu_share: float = 0.0
    first_error: str = ""

    @property
    def failed(self) -> int:
        """Requests without a good answer."""
        return sum(self.failures.values())

    def fail(self, name: str, message: str = "") -> None:
        """Count one failure under its name; the first one's message is kept."""
        if not self.failures:
            self.first_error = f"{name}: {message}" if message else name
        self.failures[name] = self.failures.get(name, 0) + 1


class Template:
    """An `infer` packed once; msgid and id are written into each copy."""

    def __init__(self, body: dict[str, Any]) -> None:
        packed = msgpack.packb([0, _FIRST_MSGID, "infer", [{**body, "id": ID_MARK}]])
        head, mark, self._tail = packed.partition(ID_MARK.encode())
        assert mark, "the id is in the body"
        self._between = head[7:] + ID_MARK.encode()[:-_ID_DIGITS]

    def frame(self, msgid: int) -> bytes:
        """The request with this msgid."""
        number = msgid.to_bytes(4, "big")
        text = b"%016x" % (_FIRST_ID + msgid)
        return b"".join((b"\x94\x00\xce", number, self._between, text, self._tail))


class _Connection(asyncio.Protocol):
    """One connection; whole answers go to the load."""

    def __init__(self, load: "OfferedLoad") -> None:
        self._load = load
        self._frames = Frames()
        self.transport: Any = None
        self.pending: set[int] = set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, chunk: bytes) -> None:
        for frame in self._frames.feed(chunk):
            self._load.answered(self, frame)

    def connection_lost(self, error: Exception | None) -> None:
        self._load.lost(self)


class OfferedLoad:
    """Offers `rate_per_s` for `seconds`, the bodies in turn. Use: `await OfferedLoad(…).run()`.

    `sample(now)` may be called meanwhile: it takes the latencies gathered since the last call.
    """

    def __init__(
        self, path: str, templates: list[Template], *, rate_per_s: float, seconds: float
    ) -> None:
        self.measured = Measured(rate_per_s, seconds)
        self._path, self._templates = path, templates
        self._connections: list[_Connection] = []
        self._due_s: dict[int, float] = {}
        self._msgid = _FIRST_MSGID
        self._all_answered = asyncio.Event()
        self._taken = 0
        self._is_over = True
        self._redials: set[asyncio.Task[None]] = set()

    async def run(self) -> Measured:
        """The whole stretch. Raises OSError when nothing listens."""
        loop, measured = asyncio.get_running_loop(), self.measured
        for _ in range(CONNECTIONS):
            _, connection = await loop.create_unix_connection(lambda: _Connection(self), self._path)
            self._connections.append(connection)
        self._is_over = False
        began_cpu_s, began_s = _cpu_s(), time.monotonic()
        rate_per_s = measured.offered_per_s
        total = int(measured.seconds * rate_per_s)
        await send_at(rate_per_s, self._send, began_s=began_s, total=total)
        spent_s = time.monotonic() - began_s
        measured.generator_cpu_share = (_cpu_s() - began_cpu_s) / max(spent_s, 1e-9)
        await self._wait_for_last_answers()
        self._is_over = True
        for task in self._redials:
            task.cancel()
        for connection in self._connections:
            if connection.transport is not None:
                connection.transport.abort()
        return measured

    def sample(self) -> list[float]:
        """Latencies in seconds since the last call."""
        taken, self._taken = self._taken, len(self.measured.latencies_s)
        return list(self.measured.latencies_s[taken:])

    def answered(self, connection: _Connection, frame: bytes) -> None:
        """An answer came, good or not."""
        if not frame.startswith(_ANSWER_HEAD):
            return  # a notification
        msgid = int.from_bytes(frame[3:7], "big")
        due_s = self._due_s.pop(msgid, None)
        connection.pending.discard(msgid)
        if due_s is None:
            return
        if frame[7] == _NIL:
            self.measured.latencies_s.append(time.monotonic() - due_s)
        else:
            error = msgpack.unpackb(frame)[2]
            self.measured.fail(str(error.get("name", "unknown")), str(error.get("message", "")))
        if not self._due_s:
            self._all_answered.set()

    def lost(self, connection: _Connection) -> None:
        """What was in flight on a connection that ended has failed; it is dialled again."""
        for msgid in connection.pending:
            if self._due_s.pop(msgid, None) is not None:
                self.measured.fail("CONNECTION_LOST")
        connection.pending.clear()
        connection.transport = None
        if not self._due_s:
            self._all_answered.set()
        if not self._is_over:
            task = asyncio.create_task(self._redial(connection))
            self._redials.add(task)
            task.add_done_callback(self._redials.discard)

    async def _redial(self, lost: _Connection) -> None:
        loop, place = asyncio.get_running_loop(), self._connections.index(lost)
        while True:
            await asyncio.sleep(REDIAL_S)
            try:
                _, self._connections[place] = await loop.create_unix_connection(
                    lambda: _Connection(self), self._path
                )
            except OSError:
                continue  # a restart: tried again until the load is over
            return

    def _send(self, index: int, due_s: float) -> None:
        measured = self.measured
        measured.sent += 1
        measured.lags_s.append(max(0.0, time.monotonic() - due_s))
        connection = self._connections[index % len(self._connections)]
        if connection.transport is None:
            measured.fail("CONNECTION_LOST")
            return
        if len(self._due_s) >= IN_FLIGHT_MAX:
            measured.fail("UNSENT")
            return
        self._msgid = _FIRST_MSGID if self._msgid >= _MSGID_MAX else self._msgid + 1
        self._due_s[self._msgid] = due_s
        connection.pending.add(self._msgid)
        template = self._templates[index % len(self._templates)]
        connection.transport.write(template.frame(self._msgid))

    async def _wait_for_last_answers(self) -> None:
        ends_s = time.monotonic() + LAST_ANSWERS_S
        while self._due_s and time.monotonic() < ends_s:
            self._all_answered.clear()
            try:
                await asyncio.wait_for(self._all_answered.wait(), ends_s - time.monotonic())
            except TimeoutError:
                break
        for _ in self._due_s:
            self.measured.fail("NO_ANSWER")
        self._due_s.clear()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
