"""Batching on `sleepy`, whose cost is known: 5 ms a batch and 0.2 ms a row, of which it sleeps all.

    python -m benchmarks.batching [--seconds 8] [--note TEXT] [--out FILE]

64 clients with one request in flight each, with the built-in batching policy and then with batches
of one row; one client alone. The ideal is full batches of 32 rows without a pause between them:
32 ÷ 11.4 ms = 2,807 rows/s, and 5.2 ms for one client. `busy` is the share of the time in which the
runtime's forward was running. Exit code 1 when an answer was wrong or missing, or, at full size,
when an aim was missed.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving import EXAMPLE, ROOT, load_extra_s_max, supervisor
from benchmarks.sockets import ask, metric_sum
from services.jobs.machine import describe_machine

BATCH_MS, ROW_MS, ROWS_MAX = 5.0, 0.2, 32
IDEAL_ROWS_PER_S = 1e3 * ROWS_MAX / (BATCH_MS + ROWS_MAX * ROW_MS)
IDEAL_ONE_MS = BATCH_MS + ROW_MS
WARM_UP_S = 1.0
CLIENTS = 64
PATIENT = {"kind": "sla", "name": "sleepy", "spec": {"p99_ms": 1_000.0}}
"""64 clients without batches wait a third of a second, which the built-in SLA would shed."""
GOALS = {"of_ideal": 0.92, "batched_to_unbatched": 2.3, "busy": 0.79, "p50_at_1_extra_ms": 0.5}


@contextlib.contextmanager
def mesh(toml: str = "", *policies: Mapping[str, Any]) -> Iterator[Path]:
    """A bench home with these lines instead of its `mortise.toml` (where given), started, with
    further policies applied; its path. Stopped and removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="mob", dir="/tmp"))
    home = folder / "home"
    shutil.copytree(EXAMPLE, home)
    if toml:
        tomllib.loads(toml)
        (home / "mortise.toml").write_text(toml)
    try:
        supervisor(home, "start", "--detach")
        try:
            if policies:
                apply(home, policies)
            yield home
        finally:
            supervisor(home, "stop")
    finally:
        shutil.rmtree(folder)


def apply(home: Path, policies: Sequence[Mapping[str, Any]]) -> None:
    """Commit policies; active everywhere when it returns."""
    body = {"policies": list(policies), "author": "benchmark", "reason": "what is measured"}
    ask(home / ".mortise/run/control_plane.sock", "apply", body)


def run_traffic(home: Path, *groups: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Groups of requests, see `benchmarks.traffic`; what was seen of each by its name."""
    path = home / ".mortise/run/orchestrator.sock"
    longest_s = max(float(group["ends_s"]) for group in groups)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.traffic", str(path), json.dumps(groups)],
        cwd=ROOT, capture_output=True, text=True, timeout=longest_s + load_extra_s_max, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"the traffic failed: {done.stderr[-2_000:]}")
    return {found["name"]: found for found in json.loads(done.stdout)}


def closed(clients: int, seconds: float, **more: Any) -> dict[str, Any]:
    """So many clients with one request in flight each."""
    ends_s = WARM_UP_S + seconds
    return {
        "name": "clients", "kind": "closed", "amount": clients, "counts_from_s": WARM_UP_S,
        "ends_s": ends_s, **more,
    }  # fmt: skip


def measure_load(home: Path, clients: int, seconds: float) -> dict[str, Any]:
    """One closed loop, with the runtime's own times and the rows of its batches."""
    runtime = home / ".mortise/run/model_runtime.0.sock"
    before = runtime_counts(runtime)
    found = run_traffic(home, closed(clients, seconds))["clients"]
    after = runtime_counts(runtime)
    batches = after["batches"] - before["batches"]
    rows = after["rows"] - before["rows"]
    took_s = seconds + WARM_UP_S
    del found["seconds"]
    found["rows_per_batch"] = round(rows / batches, 2)
    found["busy"] = round((after["forward_s"] - before["forward_s"]) / took_s, 3)
    return found


def runtime_counts(path: Path) -> dict[str, float]:
    """Batches, rows and seconds of forward of a runtime since it began."""
    values = ask(path, "statistics", {})["values"]
    return {
        "batches": values["batches"],
        "rows": values["rows"],
        "forward_s": metric_sum(path, "ai_runtime_forward_seconds"),
    }


def measure(seconds: float) -> dict[str, Any]:
    """Batched, unbatched, one client; and the cost that was learnt."""
    with mesh("", PATIENT) as home:
        loads = {
            "closed 1": measure_load(home, 1, seconds),
            "closed 64": measure_load(home, CLIENTS, seconds),
        }
        values = ask(home / ".mortise/run/orchestrator.sock", "statistics", {})["values"]
        unbatched = {"kind": "batching", "name": "sleepy", "spec": {"rows_max": 1}}
        apply(home, [unbatched])
        loads["closed 64, one row a batch"] = measure_load(home, CLIENTS, seconds)
    full, single = loads["closed 64"], loads["closed 64, one row a batch"]
    return {
        "loads": loads,
        "ideal": {"rows_per_s": round(IDEAL_ROWS_PER_S, 1), "p50_at_1_ms": IDEAL_ONE_MS},
        "reached": {
            "of_ideal": round(full["rows_per_s"] / IDEAL_ROWS_PER_S, 3),
            "batched_to_unbatched": round(full["rows_per_s"] / single["rows_per_s"], 2),
            "busy": full["busy"],
            "p50_at_1_extra_ms": round(loads["closed 1"]["p50_ms"] - IDEAL_ONE_MS, 3),
        },
        "learnt": {name: value for name, value in values.items() if name.startswith("cost_")},
    }


def is_reached(reached: Mapping[str, float]) -> bool:
    """Every aim."""
    at_least = all(reached[name] >= GOALS[name] for name in list(GOALS)[:3])
    return at_least and reached["p50_at_1_extra_ms"] <= GOALS["p50_at_1_extra_ms"]


def is_sound(loads: Mapping[str, Mapping[str, Any]]) -> bool:
    """Every request was answered, and rightly."""
    return not any(found["errors"] or found["wrong"] for found in loads.values())


def table(found: Mapping[str, Any]) -> str:
    """The figures for people."""
    columns = ("rows_per_s", "p50_ms", "p99_ms", "max_ms", "rows_per_batch", "busy")
    rows = [f"{'load':<28}" + "".join(f"{name:>15}" for name in columns)]
    rows += [
        f"{name:<28}" + "".join(f"{load[column]:>15}" for column in columns)
        for name, load in found["loads"].items()
    ]
    reached = ", ".join(f"{name} {value} (aim {GOALS[name]})"
                        for name, value in found["reached"].items())  # fmt: skip
    return "\n".join([*rows, f"reached: {reached}", f"learnt: {found['learnt']}"])


def save(path: Path | None, found: Mapping[str, Any], command: str, note: str) -> None:
    """The result file, where one is asked for."""
    if path is not None:
        whole = {"command": command, **found, "machine": describe_machine(), "note": note}
        path.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batching")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load (default 8)")
    parser.add_argument("--note", default="", help="kept with the figures")
    parser.add_argument("--out", type=Path, help="the result file")
    options = parser.parse_args()
    found = measure(options.seconds)
    print(table(found))
    command = f"python -m benchmarks.batching --seconds {options.seconds:g}"
    save(options.out, {"goals": GOALS, **found}, command, options.note)
    return 0 if is_sound(found["loads"]) else 1


if __name__ == "__main__":
    sys.exit(main())
