"""Rows of unequal length on `wordy`: what batches are worth, and what a long request costs short
ones.

    python -m benchmarks.tokens [--seconds 4] [--rounds 3] [--note TEXT] [--out FILE]

Capacity: more requests of 4 to 64 ids than can be answered, with batches of up to 32 rows and of
one row; how many are answered a second. Beside: short requests in an open loop and for each fifty
of them one of 2,000 ids, with `tokens_split` as built in (a long one goes alone) and without (it
takes short ones along, padded to its own length). Rounds alternate; the median counts. Exit code 1
when a request failed that should not.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.batching import apply, mesh, save
from benchmarks.sockets import ask
from services.jobs.bench_tokens import VOCABULARY
from services.jobs.load_verdict import figures
from services.jobs.offered_load import OfferedLoad, Template

MODEL = "wordy"
SHORT_MIN, SHORT_MAX, LONG = 4, 64, 2_000
BODIES = 64
FLOOD_PER_S, SHORT_PER_S, LONG_PER_S = 24_000.0, 200.0, 4.0
PATIENT = {"kind": "sla", "name": MODEL, "spec": {"p99_ms": 4_000.0}}
"""Nobody is refused for the time that it would wait: what is measured is that time."""
WARM_UP_S = 1.0
APPLY_ATTEMPTS, APPLY_PAUSE_S = 10, 1.0


def bodies(shortest: int, longest: int) -> list[Template]:
    """Requests of one row, lengths even on a logarithmic scale."""
    chance = random.Random(longest)
    lengths = [round(shortest * (longest / shortest) ** chance.random()) for _ in range(BODIES)]
    return [
        Template(
            {
                "model_name": MODEL,
                "input_ids": [[chance.randrange(VOCABULARY) for _ in range(length)]],
            }
        )
        for length in lengths
    ]


def offer(home: Path, seconds: float, **rates: float) -> dict[str, dict[str, Any]]:
    """Open loops side by side, by name; what became of each."""
    path = str(home / ".mortise/run/orchestrator.sock")
    kinds = {"short": bodies(SHORT_MIN, SHORT_MAX), "long": bodies(LONG, LONG)}

    async def run() -> list[Any]:
        loads = [
            OfferedLoad(path, kinds[name], rate_per_s=rate, seconds=seconds)
            for name, rate in rates.items()
        ]
        return await asyncio.gather(*(load.run() for load in loads))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(run())
    return {name: figures(one) for name, one in zip(rates, found, strict=True)}


def tokens_of(home: Path) -> dict[str, float]:
    """Real tokens and padding of every batch so far."""
    families = ask(home / ".mortise/run/orchestrator.sock", "metrics", {})["metrics"]
    (family,) = [one for one in families if one["name"] == "ai_batch_tokens_total"]
    return {one["labels"][-1]: one["value"] for one in family["series"]}


def batching(home: Path, **spec: Any) -> None:
    """From now on. An orchestrator that has just been flooded may be too late to say yes: asked
    again."""
    for attempt in range(1, APPLY_ATTEMPTS + 1):
        try:
            apply(home, [{"kind": "batching", "name": MODEL, "spec": spec}])
        except SystemExit as refused:
            if attempt == APPLY_ATTEMPTS or "POLICY_REJECTED" not in str(refused):
                raise
            time.sleep(APPLY_PAUSE_S)
        else:
            return


def measure(seconds: float, rounds: int) -> dict[str, Any]:
    """Both comparisons."""
    batched: list[float] = []
    single: list[float] = []
    alone: list[dict[str, Any]] = []
    along: list[dict[str, Any]] = []
    with mesh("", PATIENT) as home:
        offer(home, WARM_UP_S, short=SHORT_PER_S)
        for _ in range(rounds):
            batching(home)
            batched.append(offer(home, seconds, short=FLOOD_PER_S)["short"]["answered_per_s"])
            batching(home, rows_max=1)
            single.append(offer(home, seconds, short=FLOOD_PER_S)["short"]["answered_per_s"])
            batching(home)
            alone.append(offer(home, seconds, short=SHORT_PER_S, long=LONG_PER_S))
            batching(home, tokens_split=8_192)
            along.append(offer(home, seconds, short=SHORT_PER_S, long=LONG_PER_S))
        counts = tokens_of(home)
        values = ask(home / ".mortise/run/orchestrator.sock", "statistics", {})["values"]
    return {
        "capacity_per_s": {
            "batches of 32 rows": statistics.median(batched),
            "batches of one row": statistics.median(single),
        },
        "batched_to_single": round(statistics.median(batched) / statistics.median(single), 2),
        "beside_long_ones": {
            "long ones alone": _beside(alone),
            "long ones take others along": _beside(along),
        },
        "padding_share": round(counts["padding"] / sum(counts.values()), 3),
        "learnt": {name: one for name, one in values.items() if f"{MODEL} 1" in name},
    }


def _beside(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("short", "long"):
        for figure in ("p50_ms", "p99_ms"):
            found[f"{name}_{figure}"] = statistics.median([one[name][figure] for one in rounds])
        found[f"{name}_failed"] = sum(one[name]["failed"] for one in rounds)
    return found


def is_sound(found: Mapping[str, Any]) -> bool:
    """Nobody failed who was not part of the flood."""
    beside = found["beside_long_ones"].values()
    return not any(one["short_failed"] or one["long_failed"] for one in beside)


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokens")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load (default 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", default="", help="kept with the figures")
    parser.add_argument("--out", type=Path, help="the result file")
    options = parser.parse_args()
    found = measure(options.seconds, options.rounds)
    for name, value in found.items():
        print(f"{name}: {value}")
    command = f"python -m benchmarks.tokens --seconds {options.seconds:g} --rounds {options.rounds}"
    save(options.out, found, command, options.note)
    return 0 if is_sound(found) else 1


if __name__ == "__main__":
    sys.exit(main())
