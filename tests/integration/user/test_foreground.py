"""A mesh in the foreground of a terminal."""

import os
import pty
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CTRL_C = b"\x03"
start_s_max = 60.0
stop_s_max = 20.0


def read_until(terminal: int, word: str | None, seconds: float) -> str:
    """What the terminal shows until it shows the word, or everybody has left it (None)."""
    shown, ends_s = b"", time.monotonic() + seconds
    while word is None or word.encode() not in shown:
        assert time.monotonic() < ends_s, shown
        try:
            shown += os.read(terminal, 65_536)
        except OSError:  # EIO: the last process that had the terminal open is gone
            break
    return shown.decode()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("module", "sign", "times"),
    [("mortise", "try: ", 1), ("supervisor", "control_plane 0", 2)],
    ids=["ready", "starting-twice"],
)
def test_ctrl_c_drains_and_says_stopped(module: str, sign: str, times: int) -> None:
    """Typed at a terminal, where the whole foreground group gets it, also before the mesh is
    ready and by an impatient hand: no traceback, exit code 0, nobody left."""
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    home = folder / "h"
    shutil.copytree(ROOT / "examples/bench", home, ignore=shutil.ignore_patterns(".mortise"))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, "start", "--home", str(home)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: os.login_tty(theirs),  # noqa: PLW1509 — no thread holds a lock here
    )
    os.close(theirs)
    try:
        shown = read_until(ours, sign, start_s_max)
        for _ in range(times):
            os.write(ours, CTRL_C)
        shown += read_until(ours, None, stop_s_max)
        assert process.wait(stop_s_max) == 0
        assert shown.endswith("stopped\r\n")
        assert "Traceback" not in shown
        assert not list((home / ".mortise" / "run").glob("*.sock"))
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        shutil.rmtree(folder, ignore_errors=True)
