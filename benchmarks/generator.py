"""The load of `benchmarks/serving.py`, in a process of its own: uvloop and raw MessagePack.

    python -m benchmarks.generator SOCKET closed CLIENTS SECONDS
    python -m benchmarks.generator SOCKET open RATE SECONDS

Every client sends its own input and checks that it gets that input's output: an answer that went
to the wrong caller fails the run. Prints one JSON object.
"""

import asyncio
import json
import random
import resource
import statistics
import struct
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
import uvloop

from services.jobs.frames import Frames
from services.jobs.ticks import send_at

OPEN_CONNECTIONS = 16
DECODE_EACH = 64
"""One answer in so many is decoded whole and compared; of the others the head is checked."""
WARM_UP_S = 1.0
LAST_ANSWERS_S = 5.0
REQUEST_HEAD = b"\x94\x00\xce"
ANSWER_HEAD = b"\x94\x01\xce"
ID_DIGITS = 16
FIRST_ID = random.SystemRandom().getrandbits(62)
"""Requests of another process have other ids, as those of two clients do; the same again would be
retries, which are counted once and cost the ledger three times as much."""
INPUTS = {"tiny": 64, "sleepy": 1}
"""Columns of each model's `x`."""
ERRORS_KEPT = 3


def row_of(seed: int, model: str = "tiny") -> bytes:
    """The row that client `seed` sends, little-endian FP32."""
    numbers, count = random.Random(seed), INPUTS[model]
    return struct.pack(f"<{count}f", *(numbers.uniform(-1, 1) for _ in range(count)))


class Template:
    """An `infer` with one row, encoded once; msgid and id are written into a copy."""

    def __init__(self, seed: int, model: str = "tiny", *, name: str = "", tenant: str = "") -> None:
        marker = "i" * ID_DIGITS
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, INPUTS[model]]}
        tensor["data"] = row_of(seed, model)
        body = {"model_name": name or model, "id": marker, "inputs": [tensor]}
        if tenant:
            body["tenant_id"] = tenant
        packed = msgpack.packb([0, 0, "infer", [body]])
        # msgpack writes msgid 0 as one byte; ours always takes five.
        self._before_id, self._after_id = packed[3:].split(marker.encode())

    def request(self, msgid: int) -> bytes:
        """The frame of request `msgid`."""
        number = msgid.to_bytes(4, "big")
        text = b"%016x" % (FIRST_ID + msgid)
        return b"".join((REQUEST_HEAD, number, self._before_id, text, self._after_id))


class Client(asyncio.Protocol):
    """One connection; `on_answer(client, msgid)` is called for each answer."""

    def __init__(
        self, load: "Load", seed: int, model: str = "tiny", expected: bytes | None = None
    ) -> None:
        self.load = load
        self.template = Template(seed, model)
        self.expected = expected
        self.answers = 0
        self._frames = Frames()

    def connection_made(self, transport: Any) -> None:
        """The loop's."""
        self.transport = transport

    def send(self, msgid: int) -> None:
        """Send one request."""
        self.transport.write(self.template.request(msgid))

    def data_received(self, chunk: bytes) -> None:
        """Every whole answer in the chunk."""
        for frame in self._frames.feed(chunk):
            self._answer(frame)

    def _answer(self, frame: bytes) -> None:
        if not frame.startswith(ANSWER_HEAD) or frame[7] != 0xC0:
            self.load.error(msgpack.unpackb(frame))
        elif self.answers % DECODE_EACH == 0:
            self._compare(msgpack.unpackb(frame)[3])
        self.answers += 1
        self.load.on_answer(self, int.from_bytes(frame[3:7], "big"))

    def _compare(self, answer: dict[str, Any]) -> None:
        output = answer["outputs"][0]["data"]
        if self.expected is None:
            self.expected = output
        # Another batch size may round differently in the last bits, another row differs at once.
        given = struct.unpack(f"<{len(output) // 4}f", output)
        expected = struct.unpack(f"<{len(output) // 4}f", self.expected)
        if any(abs(one - other) > 1e-5 for one, other in zip(given, expected, strict=True)):
            self.load.error(["the answer is another request's", list(given), list(expected)])


class Load:
    """Counts and measures; `latencies_s` from sending (closed) or from the intended time (open)."""

    def __init__(self) -> None:
        self.latencies_s = array("d")
        self.due_s = array("d")
        self.errors = 0
        self.kept: list[Any] = []
        self.began_s = time.monotonic() + WARM_UP_S
        self.sent_s: dict[int, float] = {}
        self.next_msgid = 0
        self.is_over = False
        self.all_answered = asyncio.Event()

    def error(self, what: Any) -> None:
        """Something other than an answer came back."""
        self.errors += 1
        if len(self.kept) < ERRORS_KEPT:
            self.kept.append(repr(what)[:500])

    def take(self, sent_s: float) -> int:
        """A new msgid whose latency counts from `sent_s`."""
        self.next_msgid += 1
        self.sent_s[self.next_msgid] = sent_s
        return self.next_msgid

    def on_answer(self, client: Any, msgid: int) -> None:
        """Measure; a closed loop sends the next one."""
        now_s = time.monotonic()
        sent_s = self.sent_s.pop(msgid)
        if sent_s >= self.began_s:
            self.latencies_s.append(now_s - sent_s)
            self.due_s.append(sent_s)
        self.answered(client)

    def on_failure(self, client: Any, msgid: int, what: Any) -> None:
        """An error came in the answer's place: counted, not measured."""
        self.error(what)
        self.sent_s.pop(msgid, None)
        self.answered(client)

    def answered(self, client: Any) -> None:
        """What follows an answer."""
        if not self.sent_s:
            self.all_answered.set()

    async def missing(self, within_s: float) -> int:
        """How many requests have no answer after so many seconds."""
        try:
            async with asyncio.timeout(within_s):
                while self.sent_s:
                    self.all_answered.clear()
                    await self.all_answered.wait()
        except TimeoutError:
            return len(self.sent_s)
        return 0


class Closed(Load):
    """Each client has one request in flight."""

    def answered(self, client: Any) -> None:
        """The next request of this client."""
        if not self.is_over:
            client.send(self.take(time.monotonic()))


Dial = Callable[["Load", int], Awaitable[Any]]
"""Opens the connection of client `seed`: something with `send(msgid)`."""


def dial_mesh(path: str) -> Dial:
    """Connections to the mesh's socket."""

    async def dial(load: "Load", seed: int) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_unix_connection(lambda: Client(load, seed), path)
        return client

    return dial


async def closed(dial: Dial, clients: int, seconds: float) -> Load:
    """`clients` connections with one request in flight each."""
    load = Closed()
    for client in [await dial(load, seed) for seed in range(clients)]:
        load.answered(client)
    await asyncio.sleep(WARM_UP_S + seconds)
    load.is_over = True
    return load


async def opened(
    dial: Dial, rate: int, seconds: float, connections: int = OPEN_CONNECTIONS
) -> Load:
    """`rate` requests a second, each due at its own time whether or not others were answered."""
    load = Load()
    clients = [await dial(load, seed) for seed in range(connections)]

    def send(number: int, due_s: float) -> None:
        clients[number % len(clients)].send(load.take(due_s))

    total = int((WARM_UP_S + seconds) * rate)
    await send_at(rate, send, began_s=time.monotonic(), total=total)
    load.errors += await load.missing(LAST_ANSWERS_S)
    return load


def p99_sigma_ms(load: Load) -> float | None:
    """The standard deviation of the p99 of one-second windows; None of fewer than two windows."""
    windows: dict[int, list[float]] = {}
    for due_s, latency_s in zip(load.due_s, load.latencies_s, strict=True):
        windows.setdefault(int(due_s - load.began_s), []).append(latency_s)
    whole = [sorted(found) for _, found in sorted(windows.items())]
    tails = [found[min(len(found) - 1, int(len(found) * 0.99))] * 1e3 for found in whole]
    return round(statistics.pstdev(tails), 3) if len(tails) > 1 else None


def summary(load: Load, seconds: float) -> dict[str, Any]:
    """Throughput and quantiles."""
    ordered = sorted(load.latencies_s)
    usage = resource.getrusage(resource.RUSAGE_SELF)

    def quantile_ms(share: float) -> float | None:
        if not ordered:
            return None
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3, 3)

    return {
        "answers": len(ordered),
        "per_s": round(len(ordered) / seconds, 1),
        "errors": load.errors,
        "error_samples": load.kept,
        "p50_ms": quantile_ms(0.50),
        "p90_ms": quantile_ms(0.90),
        "p99_ms": quantile_ms(0.99),
        "p999_ms": quantile_ms(0.999),
        "max_ms": quantile_ms(1.0),
        "p99_sigma_ms": p99_sigma_ms(load),
        "generator_cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
    }


def main() -> None:
    """Run one load and print its summary."""
    path, kind, amount, seconds_text = sys.argv[1:5]
    seconds = float(seconds_text)
    work = (closed if kind == "closed" else opened)(dial_mesh(path), int(amount), seconds)
    load = asyncio.Runner(loop_factory=uvloop.new_event_loop).run(work)
    print(json.dumps(summary(load, seconds)))


if __name__ == "__main__":
    main()
