"""P4: cold start, one more runtime, a runtime that was killed, a large pack, the first requests.

    python -m benchmarks.startup [--mib 1228] [--turns 20] [--out FILE] [--note TEXT]

* cold: `start --detach` until READY and until the first right answer, beside importing torch once;
  the steps of each process beside their budgets, as `status --json` has them.
* add: `mortise replicas 2`, `--turns` times, until the new runtime serves: ≤ 100 ms in the median;
  how far the forks' times lie apart: half of the spread between their 5 % and 95 % quantile.
* restart: the only runtime killed, without a standby: until the next answer. Between two kills the
  restart period passes: further deaths within it wait for longer and longer.
* first_ten: the ten requests of one client after READY, beside the p99 of later ones with pauses
  of 10 ms; of ones without a pause, too, which a first request is never like: after a pause any
  request meets cold caches and processors that sleep.
* large: a pack of 1.2 GB, in the page cache and verified before: from the kill of its runtime to
  its first answer ≤ 820 ms; the first verification, which hashed it, beside that.

Exit code 1 when a limit is not kept.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import mortise
from benchmarks.large import NAME, WIDTH, large, make_home
from benchmarks.mapping import mesh, runtimes
from benchmarks.serving import supervisor
from contracts.limits import restart_period_s
from services.jobs.bench_packs import sleepy, tiny
from services.jobs.machine import describe_machine
from supervisor import run

ADD_MS_MAX = 100.0
LARGE_MS_MAX = 820.0
SPREAD_MS_MAX = 8.0
FIRST_SHARE_MAX = 1.5
FIRST = 10
STEADY, PACED = 1_000, 500
BREATH_S = 0.01
RESTARTS = 5
PAUSE_S = restart_period_s + 1.0
ready_s_max = 30.0
X = np.ones((1, 64), np.float32)


def torch_import_ms() -> float:
    """A process that imports torch and ends."""
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return _ms(began_s)


def ask_until_answered(home: Path, model: str, x: Any) -> None:
    """One answer; what fails until then is asked again at once."""
    while True:
        try:
            with mortise.Client(home=home) as client:
                client.infer(model, inputs={"x": x}, timeout_s=10)
        except mortise.MortiseError:
            continue
        return


def cold(home: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A start of everything, and the first ten requests; leaves the mesh running."""
    import_ms, began_s = torch_import_ms(), time.perf_counter()
    supervisor(home, "start", "--detach")
    ready_ms = _ms(began_s)
    ten = first_ten(home)
    rows = run.status(home)["startup"]
    found = {
        "torch_import_ms": import_ms,
        "ready_ms": ready_ms,
        "first_answer_ms": round(ready_ms + ten["first_ms"][0], 1),
        "processes": {
            row["process"]: {
                step["step"]: [step["seconds"], step["budget_s"]] for step in row["steps"]
            }
            for row in rows
        },
        "over_budget": [
            f"{row['process']} {step['step']}"
            for row in rows
            for step in row["steps"]
            if not step["is_within"]
        ],
    }
    return found, ten


def first_ten(home: Path) -> dict[str, Any]:
    """The first requests that a mesh, or a runtime, gets after it is READY, connecting included."""
    with mortise.Client(home=home) as client:
        first_ms = [_infer_ms(client) for _ in range(FIRST)]
        steady_ms = sorted(_infer_ms(client) for _ in range(STEADY))
        paced_ms = sorted(_infer_ms(client, BREATH_S) for _ in range(PACED))
    p99_ms = paced_ms[int(PACED * 0.99)]
    return {
        "first_ms": first_ms,
        "worst_ms": max(first_ms),
        "steady_p50_ms": paced_ms[PACED // 2],
        "steady_p99_ms": p99_ms,
        "share": round(max(first_ms) / p99_ms, 2),
        "without_pauses_p50_ms": steady_ms[STEADY // 2],
        "without_pauses_p99_ms": steady_ms[int(STEADY * 0.99)],
    }


def _infer_ms(client: mortise.Client, pause_s: float = 0.0) -> float:
    if pause_s:
        time.sleep(pause_s)
    began_s = time.perf_counter()
    client.infer("tiny", inputs={"x": X})
    return _ms(began_s)


def add(home: Path, turns: int) -> dict[str, Any]:
    """One more runtime, again and again."""
    ready_ms, fork_ms = [], []
    for _ in range(turns):
        (row,) = run.replicas(home, 2)["started"]
        ready_ms.append(row["ready_ms"])
        fork_ms.append(runtimes(home)[1]["durations_s"]["fork"] * 1e3)
        run.replicas(home, 1)
    ordered = sorted(fork_ms)
    low, high = ordered[len(ordered) // 20], ordered[-1 - len(ordered) // 20]
    return {
        "turns": turns,
        "ready_ms": {
            "best": min(ready_ms),
            "median": round(statistics.median(ready_ms), 1),
            "worst": max(ready_ms),
        },
        "fork_ms_median": round(statistics.median(fork_ms), 1),
        "fork_spread_ms": round((high - low) / 2, 1),
    }


def restart(home: Path, model: str, x: Any, turns: int, pause_s: float) -> dict[str, Any]:
    """The only runtime killed; milliseconds to the next answer, and the steps of the fastest."""
    taken: list[tuple[float, dict[str, float]]] = []
    for turn in range(turns):
        if turn:
            time.sleep(pause_s)
        pid = runtimes(home)[0]["pid"]
        began_s = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        ask_until_answered(home, model, x)
        answered_ms = _ms(began_s)
        taken.append((answered_ms, runtimes(home)[0]["durations_s"]))
    milliseconds = [one for one, _ in taken]
    return {
        "first_answer_ms": {
            "best": min(milliseconds),
            "median": round(statistics.median(milliseconds), 1),
            "worst": max(milliseconds),
        },
        "steps_s": {name: round(took, 4) for name, took in min(taken, key=_first)[1].items()},
    }


def _first(pair: tuple[float, dict[str, float]]) -> float:
    return pair[0]


def renew(home: Path) -> None:
    """The only runtime killed; returns when another one is READY and nobody has asked it yet.
    Raises SystemExit."""
    pid = runtimes(home)[0]["pid"]
    os.kill(pid, signal.SIGKILL)
    ends_s = time.monotonic() + ready_s_max
    while time.monotonic() < ends_s:
        row = runtimes(home)[0]
        if row["ready"] and row["pid"] != pid:
            return
        time.sleep(0.1)
    raise SystemExit(f"no runtime was ready within {ready_s_max:g} s")


def _ms(began_s: float) -> float:
    return round((time.perf_counter() - began_s) * 1e3, 2)


def small_mesh(folder: Path, turns: int, restarts: int, pause_s: float) -> dict[str, Any]:
    """What is measured on the two small models."""
    home = make_home(folder / "small", [tiny(), sleepy()], replicas_max=2, standby=False)
    found: dict[str, Any] = {}
    try:
        found["cold"], found["first_ten_of_a_mesh"] = cold(home)
        found["add"] = add(home, turns)
        found["restart"] = restart(home, "tiny", X, restarts, pause_s)
        time.sleep(pause_s)
        renew(home)
        found["first_ten_of_a_runtime"] = first_ten(home)
    finally:
        supervisor(home, "stop")
    return found


def large_mesh(folder: Path, mib: int, restarts: int, pause_s: float) -> dict[str, Any]:
    """One large model on one runtime."""
    home = make_home(folder / "large", [large(mib)], standby=False)
    with mesh(home):
        ask_until_answered(home, NAME, np.ones((1, WIDTH), np.float32))
        first = runtimes(home)[0]["durations_s"]
        time.sleep(pause_s)  # a record of the verified files may be as old as they are
        found = restart(home, NAME, np.ones((1, WIDTH), np.float32), restarts, pause_s)
    return {
        "mib": mib,
        "first_verification_s": round(first.get("verify", 0.0), 3),
        "first_warm_s": round(first.get("warm", 0.0), 3),
        **found,
    }


def kept(found: dict[str, Any]) -> dict[str, bool]:
    """Each limit, and whether it was kept."""
    shares = [found[name]["share"] for name in ("first_ten_of_a_mesh", "first_ten_of_a_runtime")]
    return {
        f"adding a runtime ≤ {ADD_MS_MAX:g} ms": found["add"]["ready_ms"]["median"] <= ADD_MS_MAX,
        f"restarting a runtime ≤ {ADD_MS_MAX:g} ms": found["restart"]["first_answer_ms"]["median"]
        <= ADD_MS_MAX,
        f"large pack to its first answer ≤ {LARGE_MS_MAX:g} ms": found["large"]["first_answer_ms"][
            "median"
        ]
        <= LARGE_MS_MAX,
        f"forks within ± {SPREAD_MS_MAX:g} ms": found["add"]["fork_spread_ms"] <= SPREAD_MS_MAX,
        f"first ten ≤ {FIRST_SHARE_MAX:g} × steady p99": max(shares) <= FIRST_SHARE_MAX,
    }


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1_228)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=RESTARTS)
    parser.add_argument("--pause-s", type=float, default=PAUSE_S)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--note", default="")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    load_average = round(os.getloadavg()[0], 1)
    try:
        found = small_mesh(folder, given.turns, given.restarts, given.pause_s)
        found["large"] = large_mesh(folder, given.mib, min(3, given.restarts), given.pause_s)
    finally:
        shutil.rmtree(folder)
    verdicts = kept(found)
    result = {
        "what": "how soon a mesh, a runtime and a large pack answer",
        "command": f"python -m benchmarks.startup --mib {given.mib} --turns {given.turns}",
        "machine": describe_machine() | {"load_average_before": load_average},
        **found,
        "kept": verdicts,
        "note": given.note,
    }
    encoded = json.dumps(result, indent=1, ensure_ascii=False)
    print(encoded)
    if given.out:
        given.out.write_text(encoded + "\n")
    return 0 if all(verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
