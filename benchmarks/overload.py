"""Overload on `sleepy`, whose capacity is known: 2,807 rows/s a replica.

    python -m benchmarks.overload [--seconds 60] [--note TEXT] [--out FILE]

Overload: three times what 64 clients got just before, open loop, a twelfth of it in the highest
class, for `--seconds`; then half of the capacity. Measured: what was answered in time (`goodput`)
against the peak, p99 of what was admitted against the SLA of 100 ms, what the highest class lost,
seconds until normal load is normal again, what a refusal takes inside the orchestrator, and the
growth of its memory.
Exit code 1 when an answer was wrong or missing.
"""

import argparse
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.batching import (
    CLIENTS,
    WARM_UP_S,
    closed,
    mesh,
    run_traffic,
    save,
)
from benchmarks.serving import pids
from benchmarks.sockets import share_within

TIMES = 3
SLA_MS = 100.0
AFTER_S = 10.0
FIRST_SHARE = 12
CALM_SECONDS = 3
GOALS = {
    "goodput_of_peak": 0.90, "admitted_p99_of_sla": 2.0, "first_class_lost": 0,
    "normal_again_s": 10.0, "refused_within_1_ms": 0.99, "rss_growth_mib": 64.0,
}  # fmt: skip
SLA = {"kind": "sla", "name": "sleepy", "spec": {"p99_ms": SLA_MS, "shed_factor": 1.0}}


class Memory:
    """Watches the resident memory of a process in a thread of its own."""

    def __init__(self, pid: int) -> None:
        self.mib: list[float] = []
        self._path = Path(f"/proc/{pid}/statm")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.25):
            self.mib.append(int(self._path.read_text().split()[1]) / 256)

    def growth_mib(self) -> float:
        """From a quarter of the time on, when buffers have their size."""
        later = self.mib[len(self.mib) // 4 :]
        return round(max(later) - later[0], 1) if later else 0.0


def opened(name: str, rate: float, begins_s: float, ends_s: float, **more: Any) -> dict[str, Any]:
    """An open loop between two moments."""
    return {
        "name": name, "kind": "open", "amount": round(rate), "begins_s": begins_s,
        "ends_s": ends_s, "counts_from_s": max(WARM_UP_S, begins_s), **more,
    }  # fmt: skip


def overload(home: Path, seconds: float) -> dict[str, Any]:
    """The peak, three times as much, and what follows."""
    peak = run_traffic(home, closed(CLIENTS, max(3.0, seconds / 10)))["clients"]["rows_per_s"]
    total, ends_s = TIMES * peak, WARM_UP_S + seconds
    socket = home / ".mortise/run/orchestrator.sock"
    with Memory(pids(home)["orchestrator"]) as memory:
        found = run_traffic(
            home,
            opened("first", total / FIRST_SHARE, 0.0, ends_s, risk=1, tenant="first"),
            opened("second", total * 7 / FIRST_SHARE, 0.0, ends_s, risk=2, tenant="second"),
            opened("third", total * 4 / FIRST_SHARE, 0.0, ends_s, risk=3, tenant="third"),
            opened("after", peak / 2, ends_s, ends_s + AFTER_S, tenant="after"),
        )
    groups = [found[name] for name in ("first", "second", "third")]
    answered = sum(group["answered"] for group in groups)
    return {
        "peak_rows_per_s": peak,
        "offered_per_s": round(total, 1),
        "groups": found,
        "reached": {
            "goodput_of_peak": round(answered / seconds / peak, 3),
            "admitted_p99_of_sla": round(max(g["p99_ms"] for g in groups) / SLA_MS, 2),
            "first_class_lost": sum(found["first"]["errors"].values()),
            "normal_again_s": normal_again_s(found["after"], ends_s),
            "refused_within_1_ms": round(share_within(socket, "ai_refusal_seconds", 1e-3), 4),
            "rss_growth_mib": memory.growth_mib(),
        },
    }


def normal_again_s(after: Mapping[str, Any], ends_s: float) -> float:
    """Seconds after the overload until the first of three seconds in a row with a p99 within the
    SLA; the whole time when there are none."""
    in_row = 0
    for row in after["seconds"]:
        in_row = in_row + 1 if row["p99_ms"] <= SLA_MS else 0
        if in_row == CALM_SECONDS:
            return float(max(0.0, row["second"] + 1 - CALM_SECONDS - ends_s))
    return AFTER_S


def faults(found: Any) -> int:
    """Answers that were wrong and requests without one, in everything that was measured."""
    if not isinstance(found, dict):
        return 0
    own = found.get("wrong", 0) + found.get("errors", {}).get("NO ANSWER", 0)
    return int(own) + sum(faults(value) for value in found.values())


def show(found: Mapping[str, Any]) -> None:
    """The figures for people."""
    load = found["overload"]
    print(f"peak {load['peak_rows_per_s']} rows/s, offered {load['offered_per_s']}/s")
    for name, group in load["groups"].items():
        print(
            f"  {name:<8} answered {group['answered_per_s']}/s, p50 {group['p50_ms']} ms,"
            f" p99 {group['p99_ms']} ms, refused {group['errors']}"
        )
    print(f"  {load['reached']}")


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload")
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload (default 60)")
    parser.add_argument("--note", default="", help="kept with the figures")
    parser.add_argument("--out", type=Path, help="the result file")
    options = parser.parse_args()
    with mesh("", SLA) as home:
        found = {"overload": overload(home, options.seconds)}
    for group in found["overload"]["groups"].values():
        group["seconds"] = group["seconds"][:: max(1, len(group["seconds"]) // 10)]
    show(found)
    command = f"python -m benchmarks.overload --seconds {options.seconds:g}"
    save(options.out, {"goals": GOALS, **found}, command, options.note)
    return 1 if faults(found) else 0


if __name__ == "__main__":
    sys.exit(main())
