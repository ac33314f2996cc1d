"""Load-tests a model through the orchestrator's socket, in a process of its own.

    python -m services.jobs.bench --socket S --bodies FILE --p99-ms 150 --availability 0.9995
        [--rate R] [--search] [--seconds 10]

`--bodies` is a MessagePack list of `infer` bodies that are sent in turn. With `--rate` that rate is
judged against the promise; with `--search`, or without a rate, the highest rate that keeps it is
searched. The last line holds the result.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

import msgpack
import uvloop

from contracts.errors import MeshError
from services.jobs.load_verdict import (
    Promise,
    SaturationSearch,
    figures,
    is_generator_limited,
    judge,
)
from services.jobs.offered_load import OfferedLoad, Template
from services.jobs.progress import report, run

SEARCH_STEP_S = 3.0
WARM_UP_S = 0.5
WARM_UP_RATE_PER_S = 50.0
Row = dict[str, Any]


async def stretch(path: str, templates: list[Template], rate_per_s: float, seconds: float) -> Row:
    """One rate for so long."""
    load = OfferedLoad(path, templates, rate_per_s=rate_per_s, seconds=seconds)
    row = figures(await load.run())
    row["generator_limited"] = is_generator_limited(row)
    words = f"{row['offered_per_s']:g}/s: p50 {row['p50_ms']:g} ms, p99 {row['p99_ms']:g} ms"
    report(f"{words}, failed {row['failed']}")
    return row


async def search(
    path: str, templates: list[Template], promise: Promise, step_s: float
) -> tuple[Row, list[Row]]:
    """The highest rate that keeps the promise, and every stretch on the way."""
    found, rows = SaturationSearch(), []
    while found.rate is not None:
        row = await stretch(path, templates, found.rate, step_s)
        outcome, row["why"] = judge(row, promise)
        row["outcome"] = outcome
        rows.append(row)
        found.learn(outcome)
    summary = {
        "sustained_per_s": round(found.sustained_per_s, 1),
        "failed_per_s": None if found.failed_per_s is None else round(found.failed_per_s, 1),
        "generator_limited": found.is_generator_limit,
    }
    return summary, rows


async def bench(given: argparse.Namespace, templates: list[Template]) -> Row:
    """What is asked for, in order."""
    promise = Promise(given.p99_ms, given.availability)
    result: Row = {"p99_ms_promised": promise.p99_ms, "availability_promised": promise.availability}
    await stretch(given.socket, templates, WARM_UP_RATE_PER_S, WARM_UP_S)
    if given.rate is not None:
        row = await stretch(given.socket, templates, given.rate, given.seconds)
        result["outcome"], result["why"] = judge(row, promise)
        result["load"] = row
    if given.search or given.rate is None:
        step_s = min(given.seconds, SEARCH_STEP_S)
        result["saturation"], result["steps"] = await search(
            given.socket, templates, promise, step_s
        )
        if given.rate is None:
            is_kept = result["saturation"]["sustained_per_s"] > 0
            result["outcome"] = "met" if is_kept else result["steps"][-1]["outcome"]
            result["why"] = result["steps"][-1]["why"] if not is_kept else "a rate was sustained"
    return result


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--bodies", type=Path, required=True)
    parser.add_argument("--p99-ms", type=float, required=True)
    parser.add_argument("--availability", type=float, required=True)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    templates = [Template(body) for body in msgpack.unpackb(given.bodies.read_bytes())]
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(bench(given, templates))
    except (ConnectionError, FileNotFoundError) as error:
        raise MeshError("UNAVAILABLE", f"nothing listens at the socket: {error}") from error
    report("done", **result)


if __name__ == "__main__":
    run(main)
