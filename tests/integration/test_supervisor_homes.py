"""Homes that cannot be used: each refusal names what is wrong and what to do; nothing starts."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from supervisor import run
from tests.integration.toys.harness import ROOT, ToyMesh


def start(home: Path, *form: str) -> subprocess.CompletedProcess[str]:
    """`python -m supervisor start` on a home that should be refused."""
    return subprocess.run(
        [sys.executable, "-m", "supervisor", "start", *form, "--home", home],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_no_home_names_the_command_that_makes_one(tmp_path: Path) -> None:
    """Where there is no home, `start` prints the exact `mortise init` line."""
    refused = start(tmp_path / "x")
    assert refused.returncode == 1
    assert f"mortise init {tmp_path / 'x'} --example flights" in refused.stderr


def test_a_broken_file_is_refused_without_a_traceback(tmp_path: Path) -> None:
    """Garbage in mortise.toml: exit 1 and one line. Each kind has its test beside `home.parse`."""
    (tmp_path / "mortise.toml").write_text("\0\1garbage")
    refused = start(tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.startswith("mortise.toml: ")
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("form", [[], ["--detach"]], ids=["foreground", "detached"])
def test_why_a_start_failed_is_on_standard_error(form: list[str]) -> None:
    """A file that a service refuses: exit 1, the reason apart from the lines of progress."""
    with tempfile.TemporaryDirectory(prefix="mo", dir="/tmp") as name:
        home = Path(name)
        (home / "mortise.toml").write_text("home_version = 1\n")
        (home / "policies.toml").write_text("x = 1\n")
        refused = start(home, *form)
        assert refused.returncode == 1
        assert "cannot start" not in refused.stdout
        assert refused.stderr.startswith("cannot start: control_plane 0 does not start: refused:")
        assert "correct that and start again" in refused.stderr


def test_a_mesh_whose_only_view_is_missing_is_degraded() -> None:
    """A wrong path of a source: the start names it with the remedy, and ends with 1, as no model
    can be asked; corrected and started again, it ends with 0."""
    with tempfile.TemporaryDirectory(prefix="mo", dir="/tmp") as name:
        home = Path(name) / "home"
        shutil.copytree(
            ROOT / "examples/flights", home, ignore=shutil.ignore_patterns(".mortise", "*.py")
        )
        settings = (home / "mortise.toml").read_text()
        try:
            (home / "mortise.toml").write_text(settings.replace("planes.parquet", "none.parquet"))
            begun = start(home, "--detach")
            assert begun.returncode == 1, begun.stdout + begun.stderr
            assert "planes: no file matches data/none.parquet" in begun.stdout
            for line in ("nothing can be asked", f"mortise stop --home {home}"):
                assert line in begun.stdout
            (home / "mortise.toml").write_text(settings)
            run.stop(home)
            assert start(home, "--detach").returncode == 0
        finally:
            if run.status(home)["running"]:
                run.stop(home)


def test_doctor_speaks_to_a_pipeline(tmp_path: Path) -> None:
    """`doctor --json` on a broken home: exit code 1, and each finding with its fix."""
    (tmp_path / "mortise.toml").write_text("home_version = 1\nx = 1\n")
    asked = subprocess.run(
        [sys.executable, "-m", "supervisor", "doctor", "--json", "--home", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert asked.returncode == 1
    findings = {row["check"]: row for row in json.loads(asked.stdout)}
    assert findings["home"]["level"] == "fail"
    assert "`x`" in findings["home"]["found"]
    assert findings["home"]["fix"]


def test_a_full_disk_is_refused_by_name(tmp_path: Path) -> None:
    """A home on a full disk: exit 1 and the reason, nothing left running."""
    home = tmp_path / "full"
    home.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", home],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    try:
        (home / "mortise.toml").write_text("home_version = 1\n")
        fill(home / "ballast")
        refused = start(home)
        assert refused.returncode == 1
        assert os.strerror(errno.ENOSPC) in refused.stderr
        assert "Traceback" not in refused.stderr
    finally:
        subprocess.run(["umount", "-l", home], check=True)


def fill(path: Path) -> None:
    """Write until the file system is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                continue
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 — the fixture's aim, not the test's


def test_a_mesh_is_found_and_stopped_after_a_typo() -> None:
    """`mortise.toml` broken, moved or gone while the mesh runs: status and stop still reach it."""
    with ToyMesh({"orchestrator": {}}) as mesh:
        for text in ("runtime = [", 'home_version = 1\nrun_dir = "elsewhere"', "x = 1"):
            (mesh.home / "mortise.toml").write_text(text)
            assert mesh.status()["pid"] == mesh.pid
        (mesh.home / "mortise.toml").unlink()
        assert run.stop(mesh.home) == 0
        assert mesh.processes() == []
