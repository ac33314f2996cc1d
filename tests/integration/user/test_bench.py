"""`mortise bench` and `bench soak` against a running mesh, as a user types them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mortise.throwaway import Mesh

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "examples/bench"
SERVICES = ("control_plane", "data_fabric", "orchestrator", "model_runtime")

pytestmark = pytest.mark.parametrize("mesh", [BENCH], ids=["bench"], indirect=True)


def bench(mesh: Mesh, *line: str, within_s: float = 60.0) -> tuple[int, Any]:
    """Exit code and JSON of `mortise bench`."""
    done = subprocess.run(
        [sys.executable, "-m", "mortise", "bench", *line, "--home", str(mesh.home), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=within_s,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_a_rate_is_offered_and_judged_by_the_contract(mesh: Mesh) -> None:
    """Every request of the open loop is accounted for; the exit code is the contract's verdict."""
    code, found = bench(mesh, "--model", "tiny", "--rate", "100", "--seconds", "2")
    load = found["load"]
    assert load["sent"] == load["answered"] + load["failed"] == 200
    assert found["p99_ms_promised"] == 150
    assert code == (0 if found["outcome"] == "met" else 1)
    assert {"generator_lag_ms_p99", "generator_cpu_share", "generator_limited"} <= load.keys()


@pytest.mark.slow
def test_an_impossible_rate_misses_the_contract(mesh: Mesh, tmp_path: Path) -> None:
    """`sleepy` cannot answer 8,000 rows a second: refused or late, and exit code 1. The requests
    are the user's own, from a file."""
    own = tmp_path / "own.json"
    own.write_text('[{"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [1.0, 2.0]}]')
    line = ("--model", "sleepy", "--rate", "4000", "--seconds", "1", "--inputs", f"@{own}")
    code, found = bench(mesh, *line)
    assert code == 1
    assert found["outcome"] in ("missed", "generator")
    assert found["load"]["sent"] == 4000


@pytest.mark.slow
def test_saturation_is_searched_where_no_rate_is_given(mesh: Mesh) -> None:
    """Between a rate that `sleepy` sustains and one that it does not."""
    code, found = bench(mesh, "--model", "sleepy", "--seconds", "0.5")
    saturation = found["saturation"]
    assert code == 0
    assert 0 < saturation["sustained_per_s"] < saturation["failed_per_s"] <= 12_800


def test_a_model_that_is_not_there_is_named(mesh: Mesh) -> None:
    """The error of every command: its name, the reason, the remedy."""
    done = subprocess.run(
        [sys.executable, "-m", "mortise", "bench", "--model", "no", "--home", str(mesh.home)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "MODEL_UNKNOWN" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_minute_of_load_leaves_every_process_as_it_was(mesh: Mesh) -> None:
    """The 60 s form of the soak: memory, objects, descriptors, threads and p99 do not grow."""
    line = ("soak", "--minutes", "1", "--model", "tiny", "--rate", "200")
    code, found = bench(mesh, *line, within_s=120)
    watched = {(row["process"], row["what"]) for row in found["slopes"]}
    for service in SERVICES:
        for what in ("rss_mib", "descriptors", "threads"):
            assert (f"services.{service} 0", what) in watched
    for counted in ("blocks", "full_collections"):
        assert sum(what == counted for _, what in watched) == len(SERVICES)
    assert found["failed"] == 0
    assert found["reasons"] == []
    assert code == 0
