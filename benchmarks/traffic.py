"""Mixed traffic on one orchestrator socket, in a process of its own: groups of tagged requests.

    python -m benchmarks.traffic SOCKET PLAN       PLAN: JSON, see `Group`

Closed groups keep one request in flight on each of `amount` connections; open ones send `amount`
requests a second, each timed from its intended moment whatever became of the others. Every answer
is compared with what `sleepy` must give (its input, doubled). Prints one JSON object a group.
"""

import asyncio
import json
import random
import struct
import sys
import time
from array import array
from functools import partial
from typing import Any

import msgpack
import msgspec
import uvloop

from services.jobs.ticks import send_at

LAST_ANSWERS_S = 6.0
OPEN_CONNECTIONS = 16
ID_DIGITS = 16
FIRST_ID = random.SystemRandom().getrandbits(62)
"""Requests of another run have other ids: the same again would be retries, counted once."""
REQUEST_HEAD = b"\x94\x00\xce"


class Group(msgspec.Struct, kw_only=True):
    """Requests of one kind. `begins_s` and `ends_s` are seconds from the start of the run; what is
    sent before `counts_from_s` is not measured."""

    name: str
    kind: str
    amount: int
    ends_s: float
    begins_s: float = 0.0
    counts_from_s: float = 0.0
    model: str = "sleepy"
    tenant: str = "default"
    risk: int = 2
    rows: int = 1
    deadline_ms: int | None = None
    connections: int = OPEN_CONNECTIONS


class Template:
    """One `infer`, encoded once; msgid and id are written into a copy."""

    def __init__(self, group: Group, values: list[float]) -> None:
        marker = "i" * ID_DIGITS
        packed = struct.pack(f"<{len(values)}f", *values)
        tensor = {"name": "x", "datatype": "FP32", "shape": [len(values), 1], "data": packed}
        body = {
            "model_name": group.model,
            "id": marker,
            "tenant_id": group.tenant,
            "risk_level": group.risk,
            "inputs": [tensor],
        }
        context = {} if group.deadline_ms is None else {"deadline_ms": group.deadline_ms}
        encoded = msgpack.packb([0, 0, "infer", [body, context]])
        # msgpack writes msgid 0 as one byte; ours always takes five.
        self._before, self._after = encoded[3:].split(marker.encode())
        self.expected = struct.pack(f"<{len(values)}f", *(2 * value for value in values))

    def request(self, msgid: int) -> bytes:
        """The frame of request `msgid`."""
        number = msgid.to_bytes(4, "big")
        text = b"%016x" % (FIRST_ID + msgid)
        return b"".join((REQUEST_HEAD, number, self._before, text, self._after))


class Seen:
    """What became of a group's requests. Times are seconds from the start of the run."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.sent = 0
        self.answered_s: array[float] = array("d")
        self.latencies_s: array[float] = array("d")
        self.refusals_s: array[float] = array("d")
        self.errors: dict[str, int] = {}
        self.wrong = 0
        self.without_hint = 0

    def add(self, due_s: float, sent_s: float, now_s: float, message: list[Any]) -> bool:
        """Count one response; whether it was an answer."""
        error = message[2]
        if due_s < self.group.counts_from_s:
            return error is None
        if error is None:
            self.answered_s.append(now_s)
            self.latencies_s.append(now_s - due_s)
            return True
        reason = (error.get("details") or {}).get("reason", "")
        name = f"{error['name']} {reason}".strip()
        self.errors[name] = self.errors.get(name, 0) + 1
        if error["name"] in ("OVERLOADED", "QUOTA_EXCEEDED"):
            self.refusals_s.append(now_s - sent_s)
            self.without_hint += not error.get("retry_after_ms")
        return False

    def summary(self) -> dict[str, Any]:
        """The figures of this group; rates over the time in which it was counted."""
        group = self.group
        seconds = group.ends_s - max(group.begins_s, group.counts_from_s)
        return {
            "name": group.name,
            "kind": f"{group.kind} {group.amount}",
            "sent": self.sent,
            "answered": len(self.latencies_s),
            "answered_per_s": round(len(self.latencies_s) / seconds, 1),
            "rows_per_s": round(len(self.latencies_s) * group.rows / seconds, 1),
            "errors": self.errors,
            "wrong": self.wrong,
            "refusals_without_hint": self.without_hint,
            "p50_ms": quantile_ms(self.latencies_s, 0.50),
            "p95_ms": quantile_ms(self.latencies_s, 0.95),
            "p99_ms": quantile_ms(self.latencies_s, 0.99),
            "max_ms": quantile_ms(self.latencies_s, 1.0),
            "refusal_p50_ms": quantile_ms(self.refusals_s, 0.50),
            "refusal_p99_ms": quantile_ms(self.refusals_s, 0.99),
            "seconds": self._by_second(),
        }

    def _by_second(self) -> list[dict[str, Any]]:
        """Answers and p99 of each second in which answers came."""
        found: dict[int, array[float]] = {}
        for at_s, latency_s in zip(self.answered_s, self.latencies_s, strict=True):
            found.setdefault(int(at_s), array("d")).append(latency_s)
        return [
            {"second": second, "answered": len(row), "p99_ms": quantile_ms(row, 0.99)}
            for second, row in sorted(found.items())
        ]


def quantile_ms(values_s: "array[float]", share: float) -> float:
    """A quantile in milliseconds; share 1.0 is the largest; 0 of nothing."""
    ordered = sorted(values_s)
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3, 3)


class Client(asyncio.Protocol):
    """One connection of a group."""

    def __init__(self, load: "Load", seen: Seen, seed: int) -> None:
        rows = seen.group.rows
        self.template = Template(seen.group, [float(seed * 64 + row) for row in range(rows)])
        self._load, self._seen = load, seen
        self._unpacker = msgpack.Unpacker(read_size=65_536, max_buffer_size=2**26)
        self._waiting: dict[int, tuple[float, float]] = {}

    def connection_made(self, transport: Any) -> None:
        """The loop's."""
        self.transport = transport

    def send(self, due_s: float, now_s: float) -> None:
        """Send a request that was due then."""
        msgid = self._load.next_msgid()
        self._waiting[msgid] = (due_s, now_s)
        self._seen.sent += 1
        self.transport.write(self.template.request(msgid))

    def data_received(self, chunk: bytes) -> None:
        """Every whole answer in the chunk."""
        now_s = self._load.now_s()
        self._unpacker.feed(chunk)
        for message in self._unpacker:
            due_s, sent_s = self._waiting.pop(message[1])
            if self._seen.add(due_s, sent_s, now_s, message):
                self._seen.wrong += message[3]["outputs"][0]["data"] != self.template.expected
            self._load.close_one()
            if self._seen.group.kind == "closed" and now_s < self._seen.group.ends_s:
                self._load.open += 1
                self.send(now_s, now_s)


class Load:
    """All groups on one loop. `open` requests have no answer yet."""

    def __init__(self) -> None:
        self.open = 0
        self.all_answered = asyncio.Event()
        self._began_s = time.monotonic()
        self._msgid = 0

    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_s

    def close_one(self) -> None:
        """A request has its answer."""
        self.open -= 1
        if not self.open:
            self.all_answered.set()

    def next_msgid(self) -> int:
        """A msgid that no other request has."""
        self._msgid += 1
        return self._msgid

    async def run(self, path: str, groups: list[Group]) -> list[Seen]:
        """Send everything and wait for the last answers."""
        every = [Seen(group) for group in groups]
        connected = [await self._connect(path, seen) for seen in every]
        self._began_s = time.monotonic()
        await asyncio.gather(*map(self._send, every, connected))
        try:
            async with asyncio.timeout(LAST_ANSWERS_S):
                while self.open:
                    self.all_answered.clear()
                    await self.all_answered.wait()
        except TimeoutError:
            every[0].errors["NO ANSWER"] = self.open
        return every

    async def _connect(self, path: str, seen: Seen) -> list[Client]:
        loop, clients = asyncio.get_running_loop(), []
        is_closed = seen.group.kind == "closed"
        for seed in range(seen.group.amount if is_closed else seen.group.connections):
            make = partial(Client, self, seen, seed)
            _, client = await loop.create_unix_connection(make, path)
            clients.append(client)
        return clients

    async def _send(self, seen: Seen, clients: list[Client]) -> None:
        group = seen.group
        await asyncio.sleep(max(0.0, group.begins_s - self.now_s()))
        if group.kind == "closed":
            self.open += len(clients)
            for client in clients:
                client.send(self.now_s(), self.now_s())
            await asyncio.sleep(max(0.0, group.ends_s - self.now_s()))
            return

        def send(number: int, due_s: float) -> None:
            self.open += 1
            clients[number % len(clients)].send(due_s - self._began_s, self.now_s())

        total = int((group.ends_s - group.begins_s) * group.amount)
        begins_s = self._began_s + group.begins_s
        await send_at(group.amount, send, began_s=begins_s, total=total)


def main() -> None:
    """Run the plan and print what was seen."""
    path, plan = sys.argv[1:3]
    groups = msgspec.json.decode(plan, type=list[Group])
    load = Load()
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with runner:
        every = runner.run(load.run(path, groups))
    print(json.dumps([seen.summary() for seen in every]))


if __name__ == "__main__":
    main()
