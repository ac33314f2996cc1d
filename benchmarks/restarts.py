"""Ends a trivial child thousands of times and shows that the supervisor keeps its shape.

`python -m benchmarks.restarts [COUNT] [FILE]` (default 10,000; FILE gets the result too): nine in
ten are exec'd children that end at once, the rest forked ones killed by SIGKILL. Exit code 1 on a
leak.
"""

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.kill_matrix import machine
from tests.integration.toys.harness import kill, parent_of, state, toy_mesh

SPINNING = {"restarts_max": 1_000_000_000, "backoff_s_min": 0.0, "backoff_s_max": 0.0}
slack_descriptors = 6
"""A start on its way holds a few."""
s_per_restart_max = 1.0


@dataclass(frozen=True)
class Shape:
    """What must not grow."""

    descriptors: int
    threads: int
    zombies: int
    resident_kib: int


def shape(pid: int) -> Shape:
    """Of a process now."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    resident = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return Shape(
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=len(os.listdir(f"/proc/{pid}/task")),
        zombies=sum(parent_of(child) == pid and state(child) == "Z" for child in pids),
        resident_kib=int(resident) * os.sysconf("SC_PAGE_SIZE") // 1024,
    )


def restart_often(execs: int, forks: int) -> tuple[Shape, Shape]:
    """The supervisor's shape after a few and after all restarts."""
    children: dict[str, dict[str, Any]] = {
        "control_plane": {"behaviour": "spin"},
        "model_runtime": {"forked": True},
        "orchestrator": {},
    }
    seconds = 20.0 + s_per_restart_max * (execs + forks)
    with toy_mesh(children, intensity=SPINNING, ready_s_max=seconds) as mesh:
        mesh.wait_for(lambda: len(mesh.status()["children"]) == len(children))
        mesh.wait_for(lambda: mesh.child("model_runtime")["condition"] == "up")
        mesh.wait_for(lambda: mesh.child("control_plane")["restarts"] >= 5)
        before = shape(mesh.pid)
        for _ in range(forks):
            pid = mesh.child("model_runtime")["pid"]
            kill(pid, signal.SIGKILL)
            mesh.wait_for(lambda gone=pid: mesh.child("model_runtime")["pid"] not in (None, gone))  # type: ignore[misc]
        mesh.wait_for(lambda: mesh.child("control_plane")["restarts"] >= execs, seconds)
        return before, shape(mesh.pid)


def leaks(before: Shape, after: Shape) -> list[str]:
    """What grew."""
    found = []
    if after.descriptors > before.descriptors + slack_descriptors:
        found.append(f"descriptors {before.descriptors} → {after.descriptors}")
    if after.threads != before.threads:
        found.append(f"threads {before.threads} → {after.threads}")
    if after.zombies > 1:
        found.append(f"{after.zombies} zombies")
    return found


def main() -> int:
    """Run and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    begun_s = time.monotonic()
    before, after = restart_often(count - count // 10, count // 10)
    found = leaks(before, after)
    took_s = round(time.monotonic() - begun_s, 1)
    row = {
        "machine": machine(),
        "restarts": count,
        "before": asdict(before),
        "after": asdict(after),
        "leaks": found,
        "seconds": took_s,
    }
    text = json.dumps(row, indent=1)
    print(text)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(text + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
