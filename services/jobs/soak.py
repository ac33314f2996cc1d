"""Offers a steady load and says whether any process of the mesh grows.

    python -m services.jobs.soak --socket S --bodies FILE --supervisor PID --rate 200
        --seconds 1200 [--availability 0.9995]

Every few seconds it reads memory, descriptors and threads of each process, the objects that each
service counts and how often all of them were walked, and takes the p99 of the answers since.
Afterwards each series gets a slope with a 95 % interval (`slopes.py`), the first fifth left out:
caches fill then. A series is flat unless the whole interval is above its limit. The last line holds
the result.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import uvloop

from contracts.errors import MeshError
from contracts.types import Empty
from services.jobs.load_verdict import figures, quantile
from services.jobs.offered_load import OfferedLoad, Template
from services.jobs.process_shapes import Shapes, names, shapes
from services.jobs.progress import report, run
from services.jobs.slopes import POINTS_MIN, theil_sen
from shared.rpc.client import RpcClient

SAMPLES = 120
SAMPLE_S_MIN = 1.0
SETTLE_SHARE = 0.2
"""Of the run, while caches fill, files are mapped, and the allocator finds its size."""
STATISTICS_S_MAX = 2.0
WHOLE = "answers"
"""The name under which what concerns no one process stands."""


@dataclass(frozen=True)
class Limit:
    """A series may grow `per_min`, or by `whole` over the run, whichever is more: a short run sees
    what is left of a cache's filling, a long one would see a leak of that size."""

    per_min: float
    whole: float

    def in_run(self, seconds: float) -> float:
        """The limit per minute of a run of so many seconds."""
        return max(self.per_min, self.whole / (seconds / 60))


LIMITS = {
    "rss_mib": Limit(0.5, 16.0),
    "blocks": Limit(1_000.0, 40_000.0),
    "full_collections": Limit(1.0, 2.0),
    "descriptors": Limit(0.1, 4.0),
    "threads": Limit(0.1, 2.0),
    "p99_ms": Limit(0.5, 10.0),
}
COUNTED = {"blocks": "allocated_blocks", "full_collections": "full_collections"}
"""Series by the name that they have in `statistics`."""
Series = dict[tuple[str, str], list[tuple[float, float]]]


class Counts:
    """Asks every service's socket for what is in `COUNTED`."""

    def __init__(self, run_dir: Path) -> None:
        self._clients = {
            path.stem: RpcClient(str(path), path.stem.partition(".")[0])
            for path in sorted(run_dir.glob("*.sock"))
            if path.stem.partition(".")[0]
            in ("orchestrator", "control_plane", "data_fabric", "model_runtime")
        }

    async def start(self) -> None:
        """Connect; sockets that nobody serves (replicas that may come later) are left out."""
        for name, client in list(self._clients.items()):
            try:
                await client.connect(STATISTICS_S_MAX)
                await client.call("statistics", Empty(), timeout_s=STATISTICS_S_MAX)
            except MeshError:
                del self._clients[name]
                await client.close()

    async def read(self) -> Shapes:
        """The counts of each service that answers."""
        found: Shapes = {}
        for name, client in self._clients.items():
            try:
                answer = await client.call("statistics", Empty(), timeout_s=STATISTICS_S_MAX)
            except MeshError:
                continue  # it restarts: the missing samples and the load's failures show it
            for what, key in COUNTED.items():
                if (count := answer.values.get(key)) is not None:
                    found[f"services.{name}", what] = float(count)
        return found

    async def close(self) -> None:
        """Drop the connections."""
        for client in self._clients.values():
            await client.close()


async def watch(
    load: OfferedLoad, counts: Counts, processes: dict[int, str], seconds: float
) -> Series:
    """A sample of everything, until the load is over."""
    series: Series = {}
    every_s = max(SAMPLE_S_MIN, seconds / SAMPLES)
    began_s = time.monotonic()
    for number in range(1, int(seconds / every_s) + 1):
        await asyncio.sleep(max(0.0, began_s + number * every_s - time.monotonic()))
        latencies = sorted(load.sample())
        found = {**shapes(processes), **await counts.read()}
        if latencies:
            found[WHOLE, "p99_ms"] = quantile(latencies, 0.99) * 1e3
        now_min = (time.monotonic() - began_s) / 60
        for key, value in found.items():
            series.setdefault(key, []).append((now_min, value))
        if number % 10 == 0:
            report(f"{number * every_s:.0f} of {seconds:.0f} s, {load.measured.sent} sent")
    return series


def judge_series(series: Series, seconds: float) -> list[dict[str, Any]]:
    """One row a series: its slope per minute, interval, limit and verdict. Pure."""
    rows = []
    for (process, what), points in sorted(series.items()):
        kept = [point for point in points if point[0] * 60 >= seconds * SETTLE_SHARE]
        if len(kept) < POINTS_MIN:
            continue
        slope = theil_sen([when for when, _ in kept], [value for _, value in kept])
        limit = LIMITS[what].in_run(seconds)
        rows.append({
            "process": process,
            "what": what,
            "first": round(kept[0][1], 2),
            "last": round(kept[-1][1], 2),
            "slope_per_min": round(slope.value, 4),
            "low_per_min": round(slope.low, 4),
            "high_per_min": round(slope.high, 4),
            "limit_per_min": round(limit, 4),
            "is_flat": slope.low <= limit,
        })  # fmt: skip
    return rows


def verdict(rows: list[dict[str, Any]], load: dict[str, Any], availability: float) -> list[str]:
    """Why a soak did not pass; empty when it did. Pure."""
    reasons = [f"{row['what']} of {row['process']} grows" for row in rows if not row["is_flat"]]
    if not rows:
        reasons.append("the run was too short for a slope")
    if load["availability"] < availability:
        reasons.append(f"availability {load['availability']:.6g} < {availability:g}")
    return reasons


async def soak(given: argparse.Namespace) -> dict[str, Any]:
    """The load and the watch side by side."""
    templates = [Template(body) for body in msgpack.unpackb(given.bodies.read_bytes())]
    load = OfferedLoad(given.socket, templates, rate_per_s=given.rate, seconds=given.seconds)
    counts, processes = Counts(Path(given.socket).parent), names(given.supervisor)
    await counts.start()
    try:
        async with asyncio.TaskGroup() as both:
            offering = both.create_task(load.run())
            watching = both.create_task(watch(load, counts, processes, given.seconds))
    finally:
        await counts.close()
    row = figures(offering.result())
    rows = judge_series(watching.result(), given.seconds)
    gone = sorted(set(processes.values()) - set(names(given.supervisor).values()))
    reasons = verdict(rows, row, given.availability) + [f"{name} ended" for name in gone]
    return {
        "seconds": given.seconds,
        "rate_per_s": given.rate,
        "answered": row["answered"],
        "failed": row["failed"],
        "load": row,
        "slopes": rows,
        "reasons": reasons,
        "is_flat": not reasons,
    }


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--bodies", type=Path, required=True)
    parser.add_argument("--supervisor", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--availability", type=float, default=0.9995)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(soak(given))
    report("done", **result)


if __name__ == "__main__":
    run(main)
