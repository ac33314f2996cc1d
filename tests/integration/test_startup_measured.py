"""`make startup` and `make mapping` at a small size: what they measure is there, and what does not
depend on the machine's speed holds."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import mapping, startup

MIB = 16


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a path so short that sockets fit below it."""
    path = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_every_process_of_a_start_is_reported_beside_its_budgets(folder: Path) -> None:
    """Cold, with one more runtime, killed, and the first ten requests of each."""
    found = startup.small_mesh(folder, turns=2, restarts=1, pause_s=0)
    processes = found["cold"]["processes"]
    assert set(processes) == {
        "template", "control_plane 0", "data_fabric 0", "model_runtime 0", "orchestrator 0",
    }  # fmt: skip
    assert {"fork", "verify", "map", "warm", "answer"} <= set(processes["model_runtime 0"])
    assert all(budget for steps in processes.values() for _, budget in steps.values())
    assert found["add"]["turns"] == 2
    assert found["restart"]["steps_s"]["warm"] < processes["model_runtime 0"]["warm"][0]
    for name in ("first_ten_of_a_mesh", "first_ten_of_a_runtime"):
        assert len(found[name]["first_ms"]) == startup.FIRST


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_further_replica_shares_the_weights_and_computes_on_one_thread(folder: Path) -> None:
    """Even of 16 MiB it adds less memory than a process that unpickles them; no replica computes
    on more threads than it may (beside so small a model the loop's own thread shows as well)."""
    found = mapping.measure(folder, MIB, runs=1)
    verdict = mapping.judge(found)
    assert verdict["memory_share"] <= mapping.MEMORY_MAX
    assert verdict["ready_ratio"] > 1
    assert verdict["computing_threads_a_replica"] <= 2
    assert set(found["threads"]) == {"0", "1", "2"}
