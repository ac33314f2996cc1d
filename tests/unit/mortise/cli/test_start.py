"""What `start` says before it starts anything."""

import os
import tempfile
from pathlib import Path

import pytest

from mortise.cli.app import run
from shared.home import Home
from supervisor.sockets import RunLock


@pytest.mark.parametrize("form", [[], ["--detach"]], ids=["foreground", "detached"])
def test_a_running_home_is_not_started_again(
    form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both forms say it on standard error, with the line that stops this home."""
    with tempfile.TemporaryDirectory(prefix="mo", dir="/tmp") as name:
        home = Home(Path(name))
        (home.path / "mortise.toml").write_text("home_version = 1\n")
        home.prepare()
        lock = RunLock.take(home.run_dir, home.path)
        assert run(["start", *form, "--home", name]) == 1
        lock.release()
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err == (
            f"HOME_INVALID: already running: pid {os.getpid()} serves {home.run_dir};"
            f" stop it with: mortise stop --home {name}\n"
        )
