"""The kernel's answers to a change of priority, from real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.cpu_scheduling import apply, current
from supervisor.cpu_weights import Treatment

ROOT = Path(__file__).parents[2]
THREADED = "import threading, time\nfor _ in range(3):\n threading.Thread(target=time.sleep, args=(60,)).start()\nprint('up', flush=True)\n"  # noqa: E501 — a program
UNPRIVILEGED = """
import os
from supervisor.cpu_scheduling import NotPermitted, apply, current
from supervisor.cpu_weights import Treatment
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
usual = current(os.getpid())
for lower in (Treatment(usual.nice + 1), Treatment(usual.nice + 1, is_idle=True)):
    apply(os.getpid(), lower)
    print(current(os.getpid()) == lower)
try:
    apply(os.getpid(), usual)
except NotPermitted as error:
    print(error)
"""


def test_every_thread_of_a_process_is_changed() -> None:
    """The kernel keeps the level by thread; that of the main thread alone would change nothing of
    the compute."""
    command = [sys.executable, "-I", "-S", "-c", THREADED]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            threads = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
            assert len(threads) == 4
            for wanted in (Treatment(7), Treatment(7, is_idle=True)):
                apply(process.pid, wanted)
                assert {current(thread) for thread in threads} == {wanted}
        finally:
            process.kill()


def test_down_is_permitted_and_up_is_not_without_a_privilege() -> None:
    """The error says from where to where, and what is needed."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", UNPRIVILEGED],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == ["True", "True"], done.stderr
    assert "after SCHED_IDLE needs CAP_SYS_NICE, or a RLIMIT_NICE of" in lines[2]


def test_a_process_that_has_ended_is_told_apart() -> None:
    """Its exit is on the way; nobody takes it for a refusal."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", ""]) as process:
        process.wait()
    with pytest.raises(ProcessLookupError):
        apply(process.pid, Treatment(5))
