"""Throughput and latency of `tiny` through the whole mesh.

`python -m benchmarks.serving [--seconds 8] [--note TEXT] [--no-save]` makes a bench home, starts it
with the supervisor, and runs one closed-loop client, 64 of them, and an open loop of 1,000 requests
a second, each from a generator process of its own (`benchmarks/generator.py`). Prints a table and
writes `benchmarks/results/serving.json`. Exit code 1 when a request failed.

Before and after, the same generator drives `benchmarks/floor.py`, a server that does nothing: the
machine is shared and its speed changes, so the figures that compare are the ratios to that floor.

CPU per request is what the process used during the load, the warm-up included in both.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.floor import loop_ns
from benchmarks.generator import WARM_UP_S
from services.jobs.machine import describe_machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "serving.json"
EXAMPLE = ROOT / "examples" / "bench"
LOADS = (("closed", 1), ("closed", 64), ("open", 1_000))
GOALS = {
    "closed 64": {"per_s": 15_000.0},
    "closed 1": {"p50_ms": 0.4},
    "open 1000": {"p99_sigma_ms": 12.0},
}
SERVICES = ("orchestrator", "model_runtime", "control_plane", "data_fabric")
start_s_max = 120.0
load_extra_s_max = 30.0
seconds_max = 120.0


def supervisor(home: Path, *words: str) -> str:
    """Run a supervisor command in this checkout; its standard output."""
    command = [sys.executable, "-m", "supervisor", *words, "--home", str(home)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=start_s_max, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed: {done.stderr or done.stdout}")
    return done.stdout


def pids(home: Path) -> dict[str, int]:
    """The active process of each service."""
    children = json.loads(supervisor(home, "status", "--json"))["children"]
    return {
        child["service"]: child["pid"]
        for child in children
        if child["service"] in SERVICES and child.get("role", "active") == "active"
    }


def cpu_s(pid: int) -> float:
    """Processor time that a process has used. Source: proc(5), utime and stime."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def generate(path: Path, kind: str, amount: int, seconds: float) -> dict[str, Any]:
    """One load against a socket; what its generator measured."""
    return run_generator("benchmarks.generator", str(path), kind, amount, seconds)


def run_generator(
    module: str, target: str, kind: str, amount: int, seconds: float
) -> dict[str, Any]:
    """A generator in a process of its own, and what it measured. Raises CalledProcessError or
    TimeoutExpired."""
    done = subprocess.run(
        [sys.executable, "-m", module, target, kind, str(amount), str(seconds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds + load_extra_s_max,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run_floor(folder: Path, seconds: float) -> dict[str, dict[str, Any]]:
    """The closed loops against the server that does nothing."""
    path = folder / "floor.sock"
    command = [sys.executable, "-m", "benchmarks.floor", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None, "asked for above"
        server.stdout.readline()
        try:
            return {
                f"{kind} {amount}": generate(path, kind, amount, seconds)
                for kind, amount in LOADS
                if kind == "closed"
            }
        finally:
            server.terminate()
            server.wait()
            path.unlink(missing_ok=True)


def run_load(home: Path, kind: str, amount: int, seconds: float) -> dict[str, Any]:
    """One load against the mesh, and the CPU of each service per request."""
    running = pids(home)
    before = {service: cpu_s(pid) for service, pid in running.items()}
    found = generate(home / ".mortise/run/orchestrator.sock", kind, amount, seconds)
    requests = found["answers"] * (seconds + WARM_UP_S) / seconds
    found["cpu_us_per_request"] = {
        service: round((cpu_s(pid) - before[service]) * 1e6 / requests, 1)
        for service, pid in running.items()
    }
    return found


def table(loads: dict[str, dict[str, Any]]) -> str:
    """The figures for people."""
    columns = ("per_s", "p50_ms", "p90_ms", "p99_ms", "p99_sigma_ms", "p999_ms", "max_ms", "errors")
    rows = [f"{'load':<20}" + "".join(f"{name:>13}" for name in columns)]
    rows += [
        f"{name:<20}" + "".join(f"{found[column]!s:>13}" for column in columns)
        for name, found in loads.items()
    ]
    return "\n".join(rows)


def measure(seconds: float) -> tuple[dict[str, dict[str, Any]], list[dict[str, dict[str, Any]]]]:
    """Every load against one mesh, and the floor before and after."""
    folder = Path(tempfile.mkdtemp(prefix="mob", dir="/tmp"))
    home = folder / "home"
    shutil.copytree(EXAMPLE, home)
    try:
        floors = [run_floor(folder, seconds / 2)]
        supervisor(home, "start", "--detach")
        try:
            loads = {
                f"{kind} {amount}": run_load(home, kind, amount, seconds) for kind, amount in LOADS
            }
        finally:
            supervisor(home, "stop")
        floors.append(run_floor(folder, seconds / 2))
        return loads, floors
    finally:
        shutil.rmtree(folder)


def to_floor(
    loads: dict[str, dict[str, Any]], floors: list[dict[str, dict[str, Any]]]
) -> dict[str, float]:
    """Throughput at 64 clients as a share of the floor's, p50 at one client as a multiple."""

    def mean(load: str, key: str) -> float:
        return float(sum(floor[load][key] for floor in floors)) / len(floors)

    return {
        "per_s_at_64": round(loads["closed 64"]["per_s"] / mean("closed 64", "per_s"), 3),
        "p50_at_1": round(loads["closed 1"]["p50_ms"] / mean("closed 1", "p50_ms"), 2),
    }


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each load (default 8)")
    parser.add_argument("--note", default="", help="kept with the figures")
    parser.add_argument("--no-save", action="store_true", help="leave the results file alone")
    options = parser.parse_args()
    seconds = min(options.seconds, seconds_max)
    loads, floors = measure(seconds)
    shown = {f"floor {number} {name}": found for number, floor in enumerate(floors, 1)
             for name, found in floor.items()}  # fmt: skip
    ratios = to_floor(loads, floors)
    speed_ns = loop_ns()
    print(table({**loads, **shown}))
    print(f"to the floor: {ratios}; an empty Python loop takes {speed_ns} ns a turn")
    if not options.no_save:
        found = {
            "what": "infer of `tiny`, one row, through the whole mesh",
            "command": f"python -m benchmarks.serving --seconds {seconds:g}",
            "goals": GOALS,
            "loads": loads,
            "floors": floors,
            "to_the_floor": ratios,
            "python_loop_ns": speed_ns,
            "machine": describe_machine(),
            "note": options.note,
        }
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return 1 if any(found["errors"] for found in loads.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
