"""Children that misbehave: each kind is bounded, named, and leaves the others alone."""

import asyncio
import signal
import time

import pytest

from benchmarks.restarts import leaks, restart_often
from benchmarks.steady_load import SteadyLoad, ping
from supervisor import run
from supervisor.scrape import usage
from tests.integration.toys.harness import ToyMesh, kill, living, parent_of, state, toy_mesh

QUICK = {"restarts_max": 2, "backoff_s_min": 0.01, "slow_s_min": 4.0, "stable_s": 0.5}
CPU_SHARE_MAX = 0.02


async def test_a_crash_loop_is_contained_and_recovers() -> None:
    """A child that cannot start turns degraded and costs ≤ 2 % of a CPU with the supervisor; the
    other one answers everything; when the cause is gone it recovers by itself."""
    children = {"control_plane": {"behaviour": "crash-once-fixed"}, "orchestrator": {}}
    mesh = ToyMesh(children, intensity=QUICK)
    (mesh.home / "fixed").touch()
    with mesh:
        (mesh.home / "fixed").unlink()
        socket_path = str(mesh.home / ".mortise" / "run" / "orchestrator.sock")
        load = SteadyLoad(socket_path, ping, rate_per_s=50, connections=2)
        async with load:
            share = await asyncio.to_thread(cpu_share_while_degraded, mesh)
        assert share <= CPU_SHARE_MAX
        assert (load.outcome.refused, load.outcome.failures, load.outcome.retried) == (0, {}, 0)
        (mesh.home / "fixed").touch()
        mesh.wait_for(lambda: mesh.child("control_plane")["condition"] == "up")
        assert mesh.status()["state"] == "ready"


def cpu_share_while_degraded(mesh: ToyMesh) -> float:
    """End the toy that cannot start again; the supervisor's share of a CPU once it is degraded."""
    kill(mesh.child("control_plane")["pid"], signal.SIGKILL)
    mesh.wait_for(lambda: mesh.child("control_plane")["condition"] == "degraded")
    begun_s = time.monotonic()
    _, before_s, _ = usage(mesh.pid)
    time.sleep(2.5)
    _, after_s, _ = usage(mesh.pid)
    share = (after_s - before_s) / (time.monotonic() - begun_s)
    row = mesh.child("control_plane")
    assert (row["condition"], row["pid"]) == ("degraded", None), "between two slow tries"
    assert "exit code 3" in row["last_ending"]
    assert mesh.status()["state"] == "degraded"
    return share


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("crash", "exit code 1"),
        ("exit0", "exit code 0"),
        ("never-ready", "not ready 1."),
    ],
)
def test_a_start_that_cannot_succeed_says_why(behaviour: str, reason: str) -> None:
    """A child that crashes, ends with 0, or never gets ready: `start` fails, names the child and
    how it ended, and leaves no process."""
    with toy_mesh(
        {"control_plane": {"behaviour": behaviour}},
        intensity={**QUICK, "restarts_max": 1},
        patience={"start_s_max": 1.0 if behaviour == "never-ready" else 30.0},
    ) as mesh:
        assert mesh.process is not None
        assert mesh.process.wait(20) == 1
        output = mesh.output()
        assert "cannot start: control_plane 0" in output
        assert reason in output
        assert not mesh.processes()
        if behaviour == "crash":
            assert "RuntimeError: a toy that cannot start" in output


def test_a_fault_of_configuration_is_refused_once() -> None:
    """No restart, no traceback: `start` fails with the child's own words, that name file, entry
    and field, and says what to do."""
    with toy_mesh({"control_plane": {"behaviour": "refuse"}, "orchestrator": {}}) as mesh:
        assert mesh.process is not None
        assert mesh.process.wait(20) == 1
        output = mesh.output()
        assert (
            "cannot start: control_plane 0 does not start: refused: toys.toml: toy 2, bear:"
            " colour is 7, expected a name\n  correct that and start again\n"
        ) in output
        assert "Traceback" not in output
        log = (mesh.home / ".mortise" / "log" / "supervisor.0.jsonl").read_text()
        assert log.count('"child_exited"') == 1
        assert not mesh.processes()


def test_a_child_that_ignores_sigterm_is_killed() -> None:
    """The drain waits no longer than the child's budget; what a child left behind goes as well."""
    children = {
        "control_plane": {"behaviour": "ignore-term", "drain_s": 0.5},
        "data_fabric": {"behaviour": "orphans"},
        "orchestrator": {},
    }
    with ToyMesh(children) as mesh:
        pids = mesh.processes()
        begun_s = time.monotonic()
        assert run.stop(mesh.home) == 0
        assert time.monotonic() - begun_s < 3.0
        assert not set(pids) & set(living())


def test_an_orphan_of_a_dead_child_is_ended() -> None:
    """What a killed service leaves behind is adopted and ended, though it called setsid."""
    with ToyMesh({"data_fabric": {"behaviour": "orphans"}, "orchestrator": {}}) as mesh:
        parent_pid = mesh.child("data_fabric")["pid"]
        orphans = [pid for pid in mesh.processes() if parent_of(pid) == parent_pid]
        assert len(orphans) == 1
        kill(parent_pid, signal.SIGKILL)
        mesh.wait_for(lambda: state(orphans[0]) == "")


def test_many_restarts_leak_nothing() -> None:
    """100 ends of a trivial child: the supervisor has as many descriptors and threads as before,
    and no zombie. `python -m benchmarks.restarts` does 10,000."""
    before, after = restart_often(execs=80, forks=20)
    assert leaks(before, after) == []
