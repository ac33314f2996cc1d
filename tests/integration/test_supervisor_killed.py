"""kill -9 of the supervisor: whatever its children are doing, none of them outlives it."""

import signal
import time

import pytest

from tests.integration.toys.harness import ToyMesh, gone_s_max, kill, toy_mesh

FOUR = {
    "control_plane": {"overlaps": False},
    "data_fabric": {"standby": True},
    "model_runtime": {"standby": True, "forked": True},
    "orchestrator": {"standby": True},
}
STORM = {
    "intensity": {"restarts_max": 1_000_000, "backoff_s_min": 0.0, "backoff_s_max": 0.0},
    "ready_s_max": 60.0,
}


def test_nothing_outlives_a_killed_supervisor() -> None:
    """After 2 s no process is left, though one child was stopped and every one has a session of
    its own; and the next start takes over the socket files that were left behind."""
    with ToyMesh(FOUR) as mesh:
        mesh.wait_whole()
        assert len(mesh.processes()) == 9
        kill(mesh.child("data_fabric")["pid"], signal.SIGSTOP)
        kill(mesh.child("model_runtime")["pid"], signal.SIGSTOP)
        kill(mesh.pid, signal.SIGKILL)
        mesh.wait_for(lambda: not mesh.processes(), gone_s_max)
        assert list((mesh.home / ".mortise" / "run").glob("*.sock"))
        (mesh.home / "out").unlink()
        assert mesh.process is not None
        assert mesh.process.wait() == -signal.SIGKILL
        mesh.launch()
        mesh.wait_for(lambda: "try: " in mesh.output())
        assert mesh.status()["state"] == "ready"


@pytest.mark.parametrize("delay_s", [0.0, 0.07, 0.2])
def test_nothing_outlives_it_in_a_storm_of_spawns(delay_s: float) -> None:
    """The same at any moment of children being spawned and forked without a pause."""
    children = {
        "control_plane": {"behaviour": "spin"},
        "data_fabric": {"behaviour": "exit0"},
        "model_runtime": {"forked": True, "behaviour": "good"},
    }
    with toy_mesh(children, template="exit0", **STORM) as mesh:
        mesh.wait_for((mesh.home / ".mortise" / "run" / "supervisor.sock").exists)
        mesh.wait_for(lambda: mesh.status().get("template_pid") is not None)
        mesh.wait_for(lambda: mesh.child("model_runtime")["restarts"] > 2)
        time.sleep(delay_s)
        kill(mesh.pid, signal.SIGKILL)
        mesh.wait_for(lambda: not mesh.processes(), gone_s_max)
