"""Takes the CPU away from processes for a while, in the ways that this machine permits."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

NEIGHBOURS = 10
_SPIN = "import os\nos.sched_setaffinity(0, {%d})\nwhile True: pass"
_V1, _V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
_period_us, _quota_us = 1_000_000, 1_000
"""A thousandth of one CPU, for the starved and their neighbours together."""


@contextmanager
def busy_neighbours(pids: Sequence[int], core: int) -> Iterator[list[int]]:
    """These processes on one core at the lowest priority there is, beside `NEIGHBOURS` loops of
    ordinary priority on the same one, which are yielded."""
    with _spinning(core) as loops:
        for pid in pids:
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {core})
                os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
        yield loops


def quota_refusal() -> str | None:
    """Why no group with a CPU quota can be made here, or None."""
    try:
        with _group():
            return None
    except OSError as error:
        return f"no writable cpu controller: {error.strerror} ({error.filename})"


@contextmanager
def no_quota_left(pids: Sequence[int], core: int) -> Iterator[None]:
    """These processes and `NEIGHBOURS` busy ones share a thousandth of a CPU: each waits for many
    seconds before it runs for a moment."""
    with _spinning(core) as loops, _group() as folder:
        everybody = [*loops, *pids]
        try:
            for pid in everybody:
                (folder / "cgroup.procs").write_text(str(pid))
            yield
        finally:
            for pid in everybody:
                with suppress(OSError):
                    (folder.parent / "cgroup.procs").write_text(str(pid))


@contextmanager
def _group() -> Iterator[Path]:
    is_v2 = (_V2 / "cgroup.controllers").exists()
    folder = (_V2 if is_v2 else _V1) / f"mortise-test-{os.getpid()}"
    folder.mkdir()
    try:
        if is_v2:
            (folder / "cpu.max").write_text(f"{_quota_us} {_period_us}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(_period_us))
            (folder / "cpu.cfs_quota_us").write_text(str(_quota_us))
        yield folder
    finally:
        folder.rmdir()


@contextmanager
def _spinning(core: int) -> Iterator[list[int]]:
    loops = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", _SPIN % core])
        for _ in range(NEIGHBOURS)
    ]
    try:
        yield [loop.pid for loop in loops]
    finally:
        for loop in loops:
            loop.send_signal(signal.SIGKILL)
            loop.wait()
