"""Without CPU time a mesh is slow, and nobody in it is taken for dead.

`MORTISE_STARVED_S=30` in the environment is the full size (`make starvation`).
"""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mortise.throwaway import Mesh
from supervisor import run
from tests.integration.toys.harness import ToyMesh
from tests.integration.toys.starving import busy_neighbours, no_quota_left, quota_refusal

STARVED_S = float(os.environ.get("MORTISE_STARVED_S", "8"))
"""More than a silent child is given (5 s)."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "bench"
CHILDREN = {"control_plane": {}, "orchestrator": {"standby": True}}


def starve(take_away: Callable[[list[int], int], AbstractContextManager[object]]) -> list[str]:
    """What the supervisor did to its children meanwhile, and to whom; they live on as they are."""
    with ToyMesh(CHILDREN) as mesh:
        mesh.wait_whole()
        supervisor = mesh.pid
        children = [pid for pid in mesh.processes() if pid != supervisor]
        before = {row["service"]: row["pid"] for row in mesh.status()["children"]}
        core = min(os.sched_getaffinity(0))
        with take_away(children, core):
            ends_s = time.monotonic() + STARVED_S
            while time.monotonic() < ends_s:
                time.sleep(0.5)
                rows = mesh.status()["children"]
                assert [row["condition"] for row in rows] == ["up", "up"], "live never falls"
        mesh.wait_for(lambda: all(row["ready"] for row in mesh.status()["children"]))
        after = {row["service"]: row["pid"] for row in mesh.status()["children"]}
        assert (after, set(children) <= set(mesh.processes())) == (before, True)
        return [
            f"{record['event']} {record.get('child')}: {record.get('reason')}"
            for record in mesh.records("supervisor")
            if record["event"] in ("child_stuck", "child_exited", "strangers_killed")
        ]


def test_nobody_is_killed_beside_busy_neighbours() -> None:
    """Every child at the lowest priority of one core, with ten loops of ordinary priority on it:
    no kill, no restart, and ready again at once when they are gone."""
    assert starve(busy_neighbours) == []


def test_nobody_is_killed_that_gets_no_cpu_at_all() -> None:
    """Children that wait for a CPU for longer than silence is tolerated: `ready` falls, `live`
    never, and the same processes are ready once they may run."""
    if (refusal := quota_refusal()) is not None:
        pytest.skip(refusal)
    assert starve(no_quota_left) == []


def test_a_whole_mesh_without_cpu_serves_again_once_it_has_some() -> None:
    """All four services, standbys and template: nobody restarts, no forward is taken for hung, and
    the next request is answered."""
    if (refusal := quota_refusal()) is not None:
        pytest.skip(refusal)
    with Mesh(EXAMPLE) as mesh, mesh.client() as client:
        before = run.status(mesh.home)
        standbys = [row["standby"] for row in before["children"] if row["standby"]]
        everybody = [row["pid"] for row in (*before["children"], *standbys) if row["pid"]]
        with no_quota_left([*everybody, before["template_pid"]], min(os.sched_getaffinity(0))):
            ends_s = time.monotonic() + STARVED_S
            while time.monotonic() < ends_s:
                time.sleep(0.5)
                rows = run.status(mesh.home)["children"]
                assert {row["condition"] for row in rows} == {"up"}, "live never falls"
        assert client.infer("sleepy", inputs={"x": [[2.0]]}).outputs["y"] == [[4.0]]
        after = run.status(mesh.home)
        for row, was in zip(after["children"], before["children"], strict=True):
            assert (row["pid"], row["restarts"]) == (was["pid"], 0)
        log = (mesh.home / ".mortise" / "log" / "supervisor.0.jsonl").read_text()
        assert "child_stuck" not in log
