"""A throw-away mesh is gone afterwards, however the test run ends."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mortise.throwaway import Mesh

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "examples/bench"
GONE_S_MAX = 30.0
PROGRAM = (
    "import sys, time; from mortise.throwaway import Mesh\n"
    "with Mesh(sys.argv[1]) as mesh:\n"
    "    print(mesh.pid, mesh.home, flush=True)\n"
    "    time.sleep(600)\n"
)


def processes_of(home: Path) -> list[int]:
    """Every process that has the home on its command line or in its working files."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            links = [os.readlink(link) for link in (folder / "fd").iterdir()]
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it ended, or belongs to someone else
        if os.fsencode(home) in line or any(link.startswith(str(home)) for link in links):
            found.append(int(folder.name))
    return found


def test_a_killed_test_run_leaves_no_process() -> None:
    """SIGKILL to the run: the supervisor is told by the kernel, and everything below it ends."""
    run = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, BENCH], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    pid, _, home = run.stdout.readline().strip().partition(" ")
    assert int(pid) in processes_of(Path(home))
    run.kill()
    run.wait()
    run.stdout.close()
    ends_s = time.monotonic() + GONE_S_MAX
    while left := processes_of(Path(home)):
        assert time.monotonic() < ends_s, f"left: {left}"
        time.sleep(0.05)
    shutil.rmtree(Path(home).parent)


def test_a_mesh_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    """The supervisor's own words are in the exception; the copy of the home is gone."""
    (tmp_path / "mortise.toml").write_text("home_version = 1\nnonsense = 1\n")
    mesh = Mesh(tmp_path)
    with pytest.raises(RuntimeError, match="nonsense"), mesh:
        pass
    assert not mesh.home.exists()


def test_a_failing_block_ends_the_mesh() -> None:
    """An exception inside the block: every process is gone when it arrives outside."""
    seen: list[int] = []

    def fail(mesh: Mesh) -> None:
        with mesh:
            seen.extend(processes_of(mesh.home))
            raise ZeroDivisionError

    mesh = Mesh(BENCH)
    with pytest.raises(ZeroDivisionError):
        fail(mesh)
    assert len(seen) > 4
    assert processes_of(mesh.home) == []
    assert not mesh.home.exists()
