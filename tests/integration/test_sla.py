"""SLAs over rolling windows in a real mesh: counted across kills of the process that counts and of
the supervisor that keeps the windows.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mortise.errors import MortiseError
from mortise.throwaway import Mesh
from supervisor import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "bench"
INPUT = {"x": [[1.0] * 64]}
wait_s_max = 40.0


def ask(mesh: Mesh, count: int, **body: Any) -> list[str]:
    """So many requests for `tiny`, one after the other: how each ended."""
    ends = []
    with mesh.client() as client:
        for _ in range(count):
            try:
                client.infer("tiny", inputs=INPUT, **body)
                ends.append("ok")
            except MortiseError as error:
                ends.append(error.name)
    return ends


def mortise(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """The command, run to its end."""
    line = [sys.executable, "-m", "mortise", *words]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)


def command(mesh: Mesh, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code of `mortise sla` and its row of `tiny` in the first window shown."""
    done = mortise("sla", "--json", "--home", mesh.home, *words)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["rows"]
    return done.returncode, next(row for row in found if row["model"] == "tiny")


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds."""
    ends_s = time.monotonic() + wait_s_max
    while not condition():
        assert time.monotonic() < ends_s, "it did not happen in time"
        time.sleep(0.1)


def orchestrator_pid(mesh: Mesh) -> int | None:
    """Of the active one that answers."""
    for row in run.status(mesh.home)["children"]:
        if row["service"] == "orchestrator" and row["ready"]:
            return int(row["pid"])
    return None


def apply_sla(mesh: Mesh, spec: dict[str, Any]) -> None:
    """A commit of the `sla` policy of `tiny`, active everywhere."""
    policy = {"kind": "sla", "name": "tiny", "spec": spec}
    with mesh.client("control_plane") as control_plane:
        control_plane.call("apply", {"policies": [policy], "author": "test", "reason": "test"})


@pytest.mark.timeout(240)
def test_windows_survive_a_kill_of_who_counts_and_of_who_keeps_them() -> None:
    """Answers, refusals and the caller's own errors are told apart; the targets are those of the
    policy in force; a missed one is exit code 1."""
    with Mesh(EXAMPLE) as mesh:
        apply_sla(mesh, {"p99_ms": 4_000.0})
        assert ask(mesh, 5) == ["ok"] * 5
        assert ask(mesh, 2, model_version="77") == ["MODEL_UNKNOWN"] * 2
        wait_for(lambda: command(mesh)[1]["promises"][1]["target"] == 4_000.0)
        code, row = command(mesh, "--window", "5m")
        assert (code, row["requests"], row["callers_own"], row["errors"]) == (0, 5, 2, {})
        run.restart(mesh.home, "orchestrator")
        assert ask(mesh, 2) == ["ok"] * 2
        assert command(mesh, "--window", "1h")[1]["requests"] == 7
        wait_for(lambda: orchestrator_pid(mesh) is not None)
        killed = orchestrator_pid(mesh)
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: orchestrator_pid(mesh) not in (None, killed))
        assert ask(mesh, 3) == ["ok"] * 3
        code, row = command(mesh, "--window", "30d")
        assert (code, row["requests"], row["callers_own"]) == (0, 10, 2)
        os.kill(mesh.pid, signal.SIGKILL)
        wait_for(lambda: not run.status(mesh.home)["running"])
        mortise("start", "--detach", "--home", mesh.home)
        try:
            assert ask(mesh, 1) == ["ok"]
            apply_sla(mesh, {"p99_ms": 0.001, "stages": {}})
            wait_for(lambda: command(mesh)[1]["promises"][1]["target"] == 0.001)
            code, row = command(mesh)
            assert (code, row["requests"], row["callers_own"]) == (1, 11, 2)
            assert row["missed"] == ["p99"]
        finally:
            mortise("stop", "--home", mesh.home)
