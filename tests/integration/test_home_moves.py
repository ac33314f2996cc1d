"""A home is not tied to its place: detached start, a move, and the same digests as before."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short folder; a mesh that still runs in it is stopped."""
    place = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    try:
        yield place
    finally:
        for home in place.iterdir():
            if run.status(home)["running"]:
                run.stop(home)
        shutil.rmtree(place)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """`python -m …` in the checkout."""
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=120,
        check=False, env={**os.environ, "MORTISE_HOME": ""},
    )  # fmt: skip


def lineage(printed: str) -> dict[str, Any]:
    """Of the answer to the line that the start told to try."""
    line = next(line for line in printed.splitlines() if line.startswith("try: mortise infer"))
    asked = command(*shlex.split(line.removeprefix("try: ")), "--json")
    assert asked.returncode == 0, asked.stderr
    answer: dict[str, Any] = json.loads(asked.stdout)
    return dict(answer["lineage"])


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_moved_home_starts_with_the_same_digests(folder: Path) -> None:
    """`start --detach` prints each process and returns when the mesh answers; stopped, moved and
    started again it gives the same lineage; no file of ours holds the old path."""
    home = folder / "a"
    shutil.copytree(ROOT / "examples" / "bench", home)
    shutil.rmtree(home / ".mortise", ignore_errors=True)
    started = command("supervisor", "start", "--detach", "--home", str(home))
    assert started.returncode == 0, started.stdout + started.stderr
    for service in ("control_plane", "data_fabric", "model_runtime", "orchestrator"):
        assert f"{service} 0" in started.stdout
    assert "answer" in started.stdout
    before = lineage(started.stdout)
    assert command("supervisor", "stop", "--home", str(home)).returncode == 0
    assert command("supervisor", "status", "--home", str(home)).returncode == run.EXIT_DOWN

    moved = folder / "another-name"
    home.rename(moved)
    kept = [path for path in (moved / ".mortise").rglob("*") if path.is_file()]
    holding = [path for path in kept if str(home).encode() in path.read_bytes()]
    assert not [path for path in holding if path.parent.name != "log"]
    started = command("supervisor", "start", "--detach", "--home", str(moved))
    assert started.returncode == 0, started.stdout + started.stderr
    assert lineage(started.stdout) == before
