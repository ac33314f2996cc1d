"""P3: what further replicas cost the real mesh, beside a process that unpickles the same model.

    python -m benchmarks.mapping [--mib 512] [--runs 3] [--result FILE] [--note TEXT]

A mesh serves one generated pack on one runtime. `mortise replicas` makes it two, then three, and
tells how long each took until it served (forked, mapped, a first row computed); memory is the sum
of all runtimes' PSS afterwards less before. In turn, a fresh process loads the same network with
`torch.load` and answers a row: the usual way, and the one place of this project that unpickles a
model, for the comparison alone. Then all replicas compute at once, and the threads that run are
counted. Limits: ready ≥ 17 × faster, ≤ 38 % of the memory, no more computing threads than
`threads` in each replica. Exit code 1 when one is not kept.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mortise
from benchmarks.large import NAME, WIDTH, large, make_home
from benchmarks.serving import ROOT, supervisor
from services.jobs.machine import describe_machine
from services.model_runtime.backends.architectures import build
from supervisor import run

REPLICAS = 3
SPEED_MIN, MEMORY_MAX = 17.0, 0.38
FORWARDS = 12
"""Of each caller while threads are counted."""
SAMPLE_S = 0.002
PICKLED = """
import sys, time
began_s = time.perf_counter()
import torch
imported_s = time.perf_counter()
torch.set_num_threads(1)
network = torch.load(sys.argv[1], weights_only=False)
loaded_s = time.perf_counter()
with torch.inference_mode():
    network(torch.ones(1, int(sys.argv[2])))
print(imported_s - began_s, loaded_s - imported_s, time.perf_counter() - loaded_s, flush=True)
sys.stdin.read()
"""


def as_module(weights: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.nn.Sequential:
    """The same network as a module of torch, as it would be pickled."""
    layers: list[torch.nn.Module] = []
    for weight, bias in weights:
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], device="meta")
        layer.weight, layer.bias = torch.nn.Parameter(weight), torch.nn.Parameter(bias)
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


@contextmanager
def mesh(home: Path) -> Iterator[None]:
    """The mesh of a home, from its start to its stop."""
    supervisor(home, "start", "--detach")
    try:
        yield
    finally:
        supervisor(home, "stop")


def memory_mib(pid: int) -> tuple[float, float]:
    """Proportional and private set size of a process. Source: proc(5), smaps_rollup."""
    found = {"Pss": 0, "Private_Clean": 0, "Private_Dirty": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0])
    return found["Pss"] / 1024, (found["Private_Clean"] + found["Private_Dirty"]) / 1024


def runtimes(home: Path) -> dict[int, dict[str, Any]]:
    """Index → row of the runtimes that run."""
    rows = run.status(home)["children"]
    return {row["index"]: row for row in rows if row["service"] == "model_runtime"}


def pss_of_all(home: Path) -> float:
    """MiB of every runtime together."""
    return sum(memory_mib(row["pid"])[0] for row in runtimes(home).values())


def add_one(home: Path, count: int) -> dict[str, Any]:
    """One more replica: seconds until it served, MiB that all runtimes grew by, its own memory."""
    before_mib = pss_of_all(home)
    (started,) = run.replicas(home, count)["started"]
    _, private_mib = memory_mib(started["pid"])
    return {
        "ready_s": started["ready_ms"] / 1e3,
        "added_mib": pss_of_all(home) - before_mib,
        "private_mib": private_mib,
        "steps_s": runtimes(home)[count - 1]["durations_s"],
    }


def unpickle(path: Path) -> dict[str, float]:
    """A fresh process that loads the pickled module and answers a row. COMPARISON ONLY: unpickling
    executes what the file says, which is why the product never does it."""
    began_s = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", PICKLED, str(path), str(WIDTH)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None, "it is a pipe"
        line = process.stdout.readline()
        ready_s = time.perf_counter() - began_s
        import_s, load_s, forward_s = map(float, line.split())
        pss_mib, private_mib = memory_mib(process.pid)
        process.kill()
    return {
        "ready_s": ready_s,
        "import_s": import_s,
        "load_s": load_s,
        "forward_s": forward_s,
        "added_mib": pss_mib,
        "private_mib": private_mib,
    }


def cpu_by_thread(pid: int) -> dict[int, int]:
    """Ticks that each thread of a process has computed. Source: proc(5), utime and stime."""
    found = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        found[int(folder.name)] = int(fields[11]) + int(fields[12])
    return found


def count_threads(home: Path, callers: int) -> dict[str, Any]:
    """Ask from so many threads at once; for each replica: how many of its threads ran at the same
    time (state R, sampled), at most and in the median of samples in which any ran, and how many
    of them did a tenth of its computing or more."""
    pids = {index: row["pid"] for index, row in runtimes(home).items()}
    before = {index: cpu_by_thread(pid) for index, pid in pids.items()}
    running: dict[int, list[int]] = {index: [] for index in pids}
    asking = [threading.Thread(target=_ask, args=(home,)) for _ in range(callers)]
    for thread in asking:
        thread.start()
    while any(thread.is_alive() for thread in asking):
        for index, pid in pids.items():
            running[index].append(_running(pid))
        time.sleep(SAMPLE_S)
    found = {}
    for index, pid in pids.items():
        ticks = [now - before[index].get(tid, 0) for tid, now in cpu_by_thread(pid).items()]
        busy = [count for count in running[index] if count]
        found[str(index)] = {
            "running_max": max(busy, default=0),
            "running_median": statistics.median(busy) if busy else 0,
            "computing": sum(count >= max(1, sum(ticks)) / 10 for count in ticks),
        }
    return found


def _ask(home: Path) -> None:
    x = np.ones((32, WIDTH), np.float32)
    with mortise.Client(home=home) as client:
        for _ in range(FORWARDS):
            client.infer(NAME, inputs={"x": x}, timeout_s=30)


def _running(pid: int) -> int:
    states = []
    for folder in Path(f"/proc/{pid}/task").iterdir():
        states.append((folder / "stat").read_text().rpartition(")")[2].split()[0])
    return states.count("R")


def measure(folder: Path, mib: int, runs: int) -> dict[str, Any]:
    """All of it in a folder of its own."""
    draft = large(mib)
    home = make_home(folder / "home", [draft], replicas_max=REPLICAS, standby=False)
    names = [f"layers.{layer}" for layer in range(len(draft.tensors) // 2)]
    arrays = {name: torch.from_numpy(array) for name, array in draft.tensors.items()}
    module = as_module([(arrays[f"{name}.weight"], arrays[f"{name}.bias"]) for name in names])
    pickled = folder / "module.pickle"
    torch.save(module, pickled)
    _check_equal(draft, module)
    del draft, arrays, module
    ways: dict[str, list[dict[str, Any]]] = {"second": [], "third": [], "unpickled": []}
    with mesh(home):
        first = runtimes(home)[0]
        for _ in range(runs):
            ways["second"].append(add_one(home, 2))
            ways["third"].append(add_one(home, 3))
            ways["unpickled"].append(unpickle(pickled))
            run.replicas(home, 1)
        run.replicas(home, REPLICAS)
        threads = count_threads(home, callers=2 * REPLICAS)
    medians = {
        way: {
            what: round(statistics.median(row[what] for row in rows), 4)
            for what in rows[0]
            if what != "steps_s"
        }
        for way, rows in ways.items()
    }
    steps = sorted(ways["second"], key=lambda row: float(row["ready_s"]))[runs // 2]["steps_s"]
    return {
        "weights_mib": mib,
        "runs": runs,
        "first_verification_s": round(first["durations_s"].get("verify", 0.0), 3),
        "first_warm_s": round(first["durations_s"].get("warm", 0.0), 3),
        **medians,
        "steps_of_a_second_s": {name: round(seconds, 4) for name, seconds in steps.items()},
        "threads": threads,
    }


def _check_equal(draft: Any, module: torch.nn.Sequential) -> None:
    """Both ways compute the same."""
    arrays = {name: torch.from_numpy(array) for name, array in draft.tensors.items()}
    x = torch.linspace(-1, 1, WIDTH)[None]
    with torch.inference_mode():
        torch.testing.assert_close(build(draft.architecture, arrays)(x)[0], module(x))


def judge(found: dict[str, Any]) -> dict[str, Any]:
    """Ratios beside their limits. `pickle` and its import: what a fresh process does."""
    second, other = found["second"], found["unpickled"]
    without_import_s = other["load_s"] + other["forward_s"]
    computing = {row["computing"] for row in found["threads"].values()}
    return {
        "ready_ratio": round(other["ready_s"] / second["ready_s"], 1),
        "ready_ratio_without_import": round(without_import_s / second["ready_s"], 1),
        "memory_share": round(second["added_mib"] / other["added_mib"], 3),
        "private_share": round(second["private_mib"] / other["private_mib"], 3),
        "computing_threads_a_replica": max(computing),
        "limits": {
            "ready_ratio_min": SPEED_MIN,
            "memory_share_max": MEMORY_MAX,
            "computing_threads_a_replica_max": 1,
        },
    }


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--note", default="")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    load_average = round(os.getloadavg()[0], 1)
    try:
        found = measure(folder, given.mib, given.runs)
    finally:
        shutil.rmtree(folder)
    verdict = judge(found)
    result = {
        "what": "further replicas of a mesh, mapped, beside a fresh process that unpickles",
        "command": f"python -m benchmarks.mapping --mib {given.mib} --runs {given.runs}",
        "machine": describe_machine() | {"load_average_before": load_average},
        **found,
        **verdict,
        "note": given.note,
    }
    encoded = json.dumps(result, indent=1, ensure_ascii=False)
    print(encoded)
    if given.result:
        given.result.write_text(encoded + "\n")
    is_kept = (
        verdict["ready_ratio"] >= SPEED_MIN
        and verdict["memory_share"] <= MEMORY_MAX
        and verdict["computing_threads_a_replica"] <= 1
    )
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
