"""The open loop of `benchmarks/swaps.py`: answers are timed as they come, and read afterwards.

On two cores a client that decodes and judges each answer while it sends would be what is measured.
"""

import asyncio
import contextlib
import struct
import time
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from benchmarks.generator import OPEN_CONNECTIONS, Client
from services.jobs.ticks import send_at

answers_s_max = 10.0
difference_max = 1e-4
_NIL = 0xC0


@dataclass
class Answers:
    """What came back; latencies in seconds from when a request was due."""

    latencies_s: "array[float]" = field(default_factory=lambda: array("d"))
    versions: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    mixed: int = 0

    def p99_ms(self, spans: Sequence[tuple[int, int]]) -> float:
        """Of the answers from and to these numbers."""
        ordered = sorted(
            latency_s for first, end in spans for latency_s in self.latencies_s[first:end]
        )
        return round(ordered[int(0.99 * (len(ordered) - 1))] * 1e3, 2)


class _Client(Client):
    """Hands each answer on as it is."""

    def _answer(self, frame: bytes) -> None:
        load: Any = self.load
        load.took(frame)


class SwapLoad:
    """`rate` requests a second for `tiny`, all with the same row, from `open` until `stop`."""

    def __init__(self, path: str, rate: float) -> None:
        self.answers = Answers()
        self._path, self._rate = path, rate
        self._clients: list[_Client] = []
        self._due_s: dict[int, float] = {}
        self._frames: list[bytes] = []
        self._all_answered = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect and begin. Raises OSError."""
        loop = asyncio.get_running_loop()
        load: Any = self
        for _ in range(OPEN_CONNECTIONS):
            _, client = await loop.create_unix_connection(lambda: _Client(load, 0), self._path)
            self._clients.append(client)
        self._work = asyncio.create_task(send_at(self._rate, self._send, began_s=time.monotonic()))

    async def stop(self) -> None:
        """Send no more; returns when every answer is there, or has not come in time."""
        assert self._work is not None, "it is open"
        self._work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._work
        with contextlib.suppress(TimeoutError):  # what is open is counted below
            async with asyncio.timeout(answers_s_max):
                while self._due_s:
                    self._all_answered.clear()
                    await self._all_answered.wait()
        if self._due_s:
            self.answers.failures["SILENT"] += len(self._due_s)
        for client in self._clients:
            client.transport.abort()

    def took(self, frame: bytes) -> None:
        """An answer, good or not."""
        due_s = self._due_s.pop(int.from_bytes(frame[3:7], "big"))
        self._frames.append(frame)
        if frame[7] == _NIL:
            self.answers.latencies_s.append(time.monotonic() - due_s)
        if not self._due_s:
            self._all_answered.set()

    def judge(self, known: Mapping[str, tuple[str, Sequence[float]]]) -> Answers:
        """What the answers say, given the weights digest and the numbers of each version: mixed is
        one whose version, digest and numbers do not belong together."""
        for frame in self._frames:
            _, _, error, answer = msgpack.unpackb(frame)
            if error is not None:
                self.answers.failures[str(error.get("name", "unknown"))] += 1
                continue
            version = answer["model_version"]
            self.answers.versions[version] += 1
            digest, numbers = known[version]
            given = struct.unpack(f"<{len(numbers)}f", answer["outputs"][0]["data"])
            is_near = all(abs(a - b) < difference_max for a, b in zip(given, numbers, strict=True))
            self.answers.mixed += answer["lineage"]["weights"] != digest or not is_near
        return self.answers

    def _send(self, number: int, due_s: float) -> None:
        self.answers.sent += 1
        msgid = number + 1
        self._due_s[msgid] = due_s
        self._clients[msgid % len(self._clients)].send(msgid)
