"""kill -9 of each of the four services in turn under a steady load, and the count of receipts.

`python -m benchmarks.kill_matrix [--rate 1000] [--kills 100] [--service NAME] [--out FILE]` starts
a mesh on a copy of the bench home; with `--service` only that one is killed. A user's clients send
`infer` (each with its own id, one retry); after each kill the slowest answer until the next kill is
noted. At the end the control plane must have counted exactly as many requests as were answered, a
retried one once.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgpack
import uvloop

from benchmarks.steady_load import Outcome, SteadyLoad
from contracts.control import Status
from contracts.limits import PROTOCOL_VERSION
from contracts.types import Empty
from services.jobs.machine import describe_machine
from shared.rpc.client import RpcClient
from supervisor import run
from supervisor.restart import Intensity

ROOT = Path(__file__).parents[1]
SERVICES = ("orchestrator", "model_runtime", "data_fabric", "control_plane")
CONNECTIONS = 50
INPUTS = 64
start_s_max = 120.0
whole_s_max = 60.0
counted_s_max = 30.0
settle_s = 1.5
"""Load before the first and after the last kill."""
turn_s = 6.4
"""Between two kills of the same child: within its intensity."""
_poll_s = 0.02

_bounds = Intensity()
assert turn_s * _bounds.restarts_max >= _bounds.period_s, "no kill degrades"


@dataclass
class Kill:
    """One kill and what clients noticed until the next."""

    service: str
    at_s: float
    worst_ms: float = 0.0


@dataclass
class Report:
    """Everything that is claimed."""

    outcome: Outcome
    counted: int = 0
    kills: list[Kill] = field(default_factory=list)

    def row(self, rate_per_s: float) -> dict[str, Any]:
        """As it is committed."""
        outcome = self.outcome
        return {
            "rate_per_s": rate_per_s,
            "connections": CONNECTIONS,
            "kills": len(self.kills),
            "sent": outcome.sent,
            "answered": outcome.answered,
            "refused": outcome.refused,
            "failed_after_one_retry": outcome.failures,
            "retried": outcome.retried,
            "receipts_counted": self.counted,
            "latency_ms": {
                name: round(outcome.quantile_ms(share), 2)
                for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("worst", 1.0))
            },
            "worst_ms_after_a_kill": {
                service: self._worst(service) for service in SERVICES if self._of(service)
            },
        }

    def _of(self, service: str) -> list[float]:
        return [kill.worst_ms for kill in self.kills if kill.service == service]

    def _worst(self, service: str) -> dict[str, float]:
        values = self._of(service)
        return {"median": round(median(values), 1), "max": round(max(values), 1)}


def infer_tiny(seed: int, deadline_ms: int | None = None) -> Any:
    """Frames of `infer` on `tiny` with the id of the request, the same in its retry."""
    said: dict[str, Any] = {"protocol_version": PROTOCOL_VERSION}
    if deadline_ms is not None:
        said["deadline_ms"] = deadline_ms
    numbers = random.Random(seed)
    data = struct.pack(f"<{INPUTS}f", *(numbers.uniform(-1, 1) for _ in range(INPUTS)))
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, INPUTS], "data": data}]

    def frame(msgid: int, number: int) -> bytes:
        body = {"model_name": "tiny", "id": f"{seed}-{number}", "inputs": inputs}
        context = {**said, "trace_id": f"{seed:016x}{number:016x}"}
        packed: bytes = msgpack.packb([0, msgid, "infer", [body, context]])
        return packed

    return frame


@contextmanager
def bench_mesh(command: list[str] | None = None) -> Iterator[Path]:
    """A mesh on a copy of the bench home; yields the home. Nothing is left behind."""
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    home = folder / "h"
    shutil.copytree(ROOT / "examples" / "bench", home)
    shutil.rmtree(home / ".mortise", ignore_errors=True)
    start = command or [sys.executable, "-P", "-m", "supervisor", "start", "--home"]
    output = folder / "out"
    with output.open("w") as out:
        process = subprocess.Popen(
            [*start, str(home)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=out,
        )
    try:
        wait_until(lambda: "mesh " in output.read_text(), start_s_max, process, output)
        yield home
        run.stop(home)
        assert process.wait(10) == 0
    finally:
        # The children die with their supervisor (PR_SET_PDEATHSIG).
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(
    is_so: Any, seconds: float, process: "subprocess.Popen[bytes]", output: Path
) -> None:
    """Poll until the claim holds; AssertionError with the supervisor's words otherwise."""
    ends_s = time.monotonic() + seconds
    while not is_so():
        assert process.poll() is None, f"the supervisor ended:\n{output.read_text()}"
        assert time.monotonic() < ends_s, f"not within {seconds} s:\n{output.read_text()}"
        time.sleep(_poll_s)


def wait_whole(home: Path) -> dict[str, int]:
    """Wait until every child is up and ready with its standby; their pids."""
    ends_s = time.monotonic() + whole_s_max
    while True:
        rows = run.status(home)["children"]
        is_whole = [
            row["ready"] and (row["service"] == "control_plane" or _stands_by(row)) for row in rows
        ]
        if rows and all(is_whole):
            return {row["service"]: row["pid"] for row in rows}
        assert time.monotonic() < ends_s, f"not whole within {whole_s_max} s: {rows}"
        time.sleep(_poll_s)


def _stands_by(row: dict[str, Any]) -> bool:
    return row["standby"] is not None and row["standby"]["state"] == "ready"


async def counted(home: Path) -> int:
    """How many different requests the control plane has receipts of."""
    client = RpcClient(str(home / ".mortise" / "run" / "control_plane.sock"), "control_plane")
    try:
        await client.connect(5.0)
        status = await client.call("status", Empty())
        assert isinstance(status, Status)
        return status.requests_counted
    finally:
        await client.close()


async def kill_in_turn(
    home: Path,
    kills: int,
    rate_per_s: float,
    spacing_s: float = turn_s / len(SERVICES),
    services: Sequence[str] = SERVICES,
) -> Report:
    """The whole run on a mesh that is up; nobody is killed before all are whole again."""
    await asyncio.to_thread(wait_whole, home)
    already = await counted(home)
    socket_path = str(home / ".mortise" / "run" / "orchestrator.sock")
    load = SteadyLoad(
        socket_path,
        infer_tiny(random.getrandbits(32)),
        rate_per_s=rate_per_s,
        connections=CONNECTIONS,
    )
    report = Report(load.outcome)
    async with load:
        await asyncio.sleep(settle_s)
        for number in range(kills):
            pids = await asyncio.to_thread(wait_whole, home)
            service = services[number % len(services)]
            report.kills.append(Kill(service, time.monotonic()))
            os.kill(pids[service], signal.SIGKILL)
            await asyncio.sleep(spacing_s)
        await asyncio.sleep(settle_s)
    _judge(report)
    ends_s = time.monotonic() + counted_s_max
    while time.monotonic() < ends_s:
        report.counted = await counted(home) - already
        if report.counted >= load.outcome.answered:
            break
        await asyncio.sleep(_poll_s * 5)
    return report


def _judge(report: Report) -> None:
    """The slowest answer of each kill's window, by the instant it was due to be sent."""
    outcome = report.outcome
    ends = [*(kill.at_s for kill in report.kills[1:]), float("inf")]
    for kill, end_s in zip(report.kills, ends, strict=True):
        latencies = [
            latency_s
            for latency_s, finished_s in zip(outcome.latencies_s, outcome.finished_s, strict=True)
            if kill.at_s <= finished_s < end_s
        ]
        kill.worst_ms = max(latencies, default=0.0) * 1e3


def machine() -> dict[str, Any]:
    """What the figures were taken on, and what else it was doing; no host name."""
    return describe_machine() | {"load_average_before": round(os.getloadavg()[0], 1)}


def main() -> int:
    """Run by command; exit code 1 when a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=1_000.0)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--service", choices=SERVICES)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    services = SERVICES if options.service is None else (options.service,)
    before = machine()
    gc.disable()  # a collection of the generator is not the mesh's latency
    with bench_mesh() as home, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        spacing_s = turn_s / len(services)
        work = kill_in_turn(home, options.kills, options.rate, spacing_s, services)
        report = runner.run(work)
    row = {"machine": before, **report.row(options.rate)}
    text = json.dumps(row, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    outcome = report.outcome
    is_kept = outcome.refused == 0 and outcome.failed == 0 and report.counted == outcome.answered
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
