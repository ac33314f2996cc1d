"""P5: allocated blocks over ten million requests: a closed loop on a mesh of its own.

    python -m benchmarks.blocks [--requests 10000000] [--minutes 60] [--result FILE] [--note TEXT]

64 clients ask `tiny` in stretches; between two of them, with nothing in flight, every service says
how many of Python's blocks it has and how often it walked all of them. Theil-Sen's slope over the
requests answered by then, without the first fifth, must not be above the limit for certain. Where
`--minutes` ends it earlier, the result says how many requests there were. No latency is claimed:
it may run beside other work. Exit code 1 when a service grows.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mortise
from benchmarks.serving import EXAMPLE, ROOT, supervisor
from services.jobs.machine import describe_machine
from services.jobs.slopes import POINTS_MIN, theil_sen

CLIENTS = 64
STRETCHES = 60
STRETCH_S_MIN, STRETCH_S_MAX = 1.0, 30.0
SETTLE_SHARE = 0.2
BLOCKS_A_MILLION_MAX = 1_000.0
"""A thousandth of a block a request: one leaked object in a thousand requests would be found."""
SHORT_MAX = {"control_plane": 140_000.0}
"""Blocks in a run of any length: the receipts that the control plane remembers until they are
indexed (a generation of 65,536, two blocks each) come and go in turns longer than a short run."""
SHORT_MAX_OTHERS = 20_000.0
SERVICES = ("orchestrator", "control_plane", "data_fabric", "model_runtime")
Sample = dict[str, float]


def sample(home: Path) -> Sample:
    """Answers so far; of each service its blocks and its full collections."""
    found: Sample = {}
    for service in SERVICES:
        with mortise.Client(home=home, service=service) as client:
            values = client.call("statistics").values
        found[f"{service} blocks"] = values["allocated_blocks"]
        found[f"{service} full_collections"] = values["full_collections"]
        if service == "orchestrator":
            found["answered"] = values["infer_answered"]
    return found


def ask(home: Path, seconds: float) -> None:
    """A stretch of the closed loop."""
    path = home / ".mortise/run/orchestrator.sock"
    words = ["-m", "benchmarks.generator", str(path), "closed", str(CLIENTS), f"{seconds:g}"]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def collect(home: Path, requests: int, minutes: float) -> tuple[list[Sample], float]:
    """Samples until so many requests were answered or the time is over; and the minutes."""
    began_s = time.monotonic()
    samples = [sample(home)]
    seconds = STRETCH_S_MIN
    while samples[-1]["answered"] < requests and time.monotonic() - began_s < minutes * 60:
        before = samples[-1]["answered"]
        ask(home, seconds)
        samples.append(sample(home))
        rate_per_s = max(1.0, (samples[-1]["answered"] - before) / seconds)
        seconds = min(STRETCH_S_MAX, max(STRETCH_S_MIN, requests / STRETCHES / rate_per_s))
        if len(samples) % 10 == 0:
            print(f"{samples[-1]['answered']:.0f} answered", file=sys.stderr, flush=True)
    return samples, (time.monotonic() - began_s) / 60


def judge(samples: list[Sample], minutes: float) -> dict[str, Any]:
    """Per service: blocks at both ends, slope a million requests with its interval, verdict."""
    total = samples[-1]["answered"]
    kept = [one for one in samples if one["answered"] >= total * SETTLE_SHARE]
    if len(kept) < POINTS_MIN:
        raise SystemExit(f"{len(kept)} samples, at least {POINTS_MIN} are needed: ask for more")
    millions = [one["answered"] / 1e6 for one in kept]
    rows = {}
    for service in SERVICES:
        blocks = [one[f"{service} blocks"] for one in kept]
        slope = theil_sen(millions, blocks)
        short_max = SHORT_MAX.get(service, SHORT_MAX_OTHERS)
        limit = max(BLOCKS_A_MILLION_MAX, short_max / millions[-1])
        collections = [one[f"{service} full_collections"] for one in (samples[0], samples[-1])]
        rows[service] = {
            "blocks_first": blocks[0],
            "blocks_last": blocks[-1],
            "slope_a_million": round(slope.value, 1),
            "low_a_million": round(slope.low, 1),
            "high_a_million": round(slope.high, 1),
            "full_collections_a_minute": round((collections[1] - collections[0]) / minutes, 3),
            "limit_a_million": round(limit, 1),
            "is_flat": slope.low <= limit,
        }
    return rows


def main() -> int:
    """Start, ask, judge, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--note", default="")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mob", dir="/tmp"))
    home = folder / "home"
    shutil.copytree(EXAMPLE, home, ignore=shutil.ignore_patterns(".mortise"))
    try:
        supervisor(home, "start", "--detach")
        try:
            samples, minutes = collect(home, given.requests, given.minutes)
        finally:
            supervisor(home, "stop")
    finally:
        shutil.rmtree(folder)
    rows = judge(samples, minutes)
    result = {
        "what": "blocks that each service has allocated, over requests",
        "command": f"python -m benchmarks.blocks --requests {given.requests}",
        "answered": int(samples[-1]["answered"]),
        "minutes": round(minutes, 1),
        "samples": len(samples),
        "services": rows,
        "machine": describe_machine() | {"load_average_after": round(os.getloadavg()[0], 1)},
        "note": given.note,
    }
    encoded = json.dumps(result, indent=1, ensure_ascii=False)
    print(encoded)
    if given.result:
        given.result.write_text(encoded + "\n")
    return 0 if all(row["is_flat"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
