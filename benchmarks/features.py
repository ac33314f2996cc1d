"""How long the features of a flight take: decode, compute, encode, one row a request and 32.

    python -m benchmarks.features [--result FILE]

CPU time of one thread, in microseconds a row: minimum and median over slices of 64 requests in the
order of December, each request decoded afresh. Indexes are measured by what their arrays hold.
"""

import argparse
import gc
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pyarrow.parquet as pq

from services.data_fabric.loading import LoadedView, Loader
from services.data_fabric.serving import ServedView
from services.jobs.machine import describe_machine
from shared.clock import SYSTEM
from shared.home import Home

EXAMPLE = Path(__file__).parents[1] / "examples/flights"
REQUESTS = 8_192
SLICE = 64
ROUNDS = 5


def load() -> LoadedView:
    """The flights view."""
    patterns = {name: one.path for name, one in Home(EXAMPLE).config().sources.items()}
    with tempfile.TemporaryDirectory() as folder:
        loader = Loader(EXAMPLE, patterns, Path(folder), SYSTEM)
        return loader.load((EXAMPLE / "features/departure.sql").read_text())


def encoded_requests(view: LoadedView, rows: int) -> list[msgspec.Raw]:
    """December's flights as a client sends them, so many in a request."""
    path = EXAMPLE / "data/flights-2013-12.parquet"
    table = pq.read_table(path, columns=list(view.header.request)).slice(0, REQUESTS).to_pylist()
    plain = [{**row, "scheduled_at": row["scheduled_at"].isoformat()} for row in table]
    parts = (plain[at : at + rows] for at in range(0, len(plain), rows))
    return [msgspec.Raw(msgspec.msgpack.encode(part)) for part in parts]


def measure(work: Callable[[Any], Any], arguments: Sequence[Any], rows: int) -> dict[str, float]:
    """CPU microseconds a row."""
    found = []
    size = max(1, SLICE // rows)
    for _ in range(ROUNDS):
        for at in range(0, len(arguments) - size + 1, size):
            part = arguments[at : at + size]
            began = time.thread_time()
            for argument in part:
                work(argument)
            found.append((time.thread_time() - began) / size / rows * 1e6)
    return {"min": round(min(found), 2), "p50": round(median(found), 2)}


def index_bytes(view: LoadedView) -> int:
    """Bytes of the arrays behind the closure."""
    assert view.closure is not None, view.reason
    seen: dict[int, int] = {}
    for bound in view.closure.values.__globals__.values():
        entries = getattr(bound, "__self__", None)
        if isinstance(entries, dict):
            for entry in entries.values():
                seen |= {id(part): sys.getsizeof(part) for part in entry if isinstance(part, array)}
    return sum(seen.values())


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()
    view = load()
    served = ServedView(view)
    gc.collect()
    gc.freeze()
    result: dict[str, Any] = {
        "machine": describe_machine(),
        "features": len(view.header.fields),
        "load_s": {step: round(seconds, 2) for step, seconds in view.durations_s.items()},
        "index_mib": round(index_bytes(view) / 2**20, 1),
    }
    for rows in (1, 32):
        requests = encoded_requests(view, rows)
        outcomes = [served.evaluate(raw) for raw in requests]
        result[f"rows_{rows}"] = {
            "evaluate_us": measure(served.evaluate, requests, rows),
            "block_us": measure(served.block, outcomes, rows),
        }
    text = msgspec.json.format(msgspec.json.encode(result), indent=2).decode()
    print(text)
    if arguments.result:
        arguments.result.write_text(text + "\n")


if __name__ == "__main__":
    main()
