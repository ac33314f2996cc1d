"""`start`, `stop`, `status`: what the command line calls.

Each blocks, prints nothing by itself but `start` (stdout; why it failed: stderr) and returns an
exit code or a value; HomeError says why a home cannot be used. `doctor` is in
`supervisor/doctor.py`.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from shared.home import Home, HomeError
from supervisor import control
from supervisor.control import Command
from supervisor.doctor import Finding, doctor
from supervisor.serve import say_stdout, serve
from supervisor.sla import Report
from supervisor.sockets import AlreadyRunning, holder, is_held, left_run_dir
from supervisor.spec import drain_s
from supervisor.status import MeshStatus
from supervisor.tree import tree

__all__ = [
    "Finding", "HomeError", "NotRunning", "UnknownChild", "check_home", "doctor", "replicas",
    "restart", "sla", "start", "status", "stop",
]  # fmt: skip

READY_VARIABLE = "MORTISE_READY"
"""The descriptor on which a detached supervisor says that the mesh is up, by one of two marks."""
_SERVES, _SERVES_NOTHING = b"1", b"0"
EXIT_FAILED = 1
EXIT_DOWN = 3
stop_s_max = drain_s + 8.0
ask_s_max = 5.0
restart_s_max = 120.0
_relay_bytes = 65_536
_poll_s = 0.02


class NotRunning(HomeError):
    """No mesh runs in this home; the message has the line that starts it."""

    def __init__(self, home: Path) -> None:
        super().__init__(
            f"no mesh is running in {home}; start it with: mortise start --home {home}"
        )


class UnknownChild(HomeError):
    """The mesh has no such child; the message names those it has."""


def check_home(home: Path) -> None:
    """Raises HomeError when the folder is no home, or its file is broken."""
    Home(home).config()


def start(home: Path, detach: bool = False) -> int:
    """Run the mesh of a home; the exit code.

    In the foreground it returns when the mesh has stopped; detached as soon as the mesh is ready
    (0), runs but has no model that can be asked (1), or could not become ready. Prints each
    process as it comes up.
    """
    place = Home(home)
    if detach:
        for folder in (place.run_dir, place.state_dir):
            if is_held(folder):
                raise AlreadyRunning(folder, place.path)
        return _start_detached(place)
    return serve(place, say=say_stdout, on_ready=_tell_launcher)


def stop(home: Path) -> int:
    """Drain the mesh of a home and wait until it is gone. Raises NotRunning."""
    run_dir = run_dir_of(Home(home))
    if not is_held(run_dir):
        raise NotRunning(home)
    pid = holder(run_dir)
    try:
        control.ask(run_dir, Command("stop"), stop_s_max)
    except OSError:
        _signal_holder(run_dir)
    ends_s = time.monotonic() + stop_s_max
    while is_held(run_dir) or _is_alive(pid):
        if time.monotonic() > ends_s:
            raise HomeError(f"pid {pid} did not stop within {stop_s_max:g} s")
        time.sleep(_poll_s)
    return 0


def status(home: Path) -> dict[str, Any]:
    """The mesh's status (`supervisor.status.MeshStatus` as a map); `{"running": False, …}` when
    none runs."""
    place = Home(home)
    run_dir = run_dir_of(place)
    if not is_held(run_dir):
        return {"running": False, "state": "down", "home": str(place.path), "children": []}
    try:
        answer = control.ask(run_dir, Command("status"), ask_s_max)
    except (FileNotFoundError, ConnectionError):  # before the start, or after the end
        return {"running": True, "state": "changing", "home": str(place.path), "children": []}
    return dict(msgspec.to_builtins(msgspec.convert(answer["status"], MeshStatus)))


def sla(home: Path) -> dict[str, Any]:
    """What was promised and kept in every window (`supervisor.sla.Report` as a map). Raises
    NotRunning, or OSError when the supervisor does not answer."""
    run_dir = run_dir_of(Home(home))
    if not is_held(run_dir):
        raise NotRunning(home)
    answer = control.ask(run_dir, Command("sla"), ask_s_max)
    return dict(msgspec.to_builtins(msgspec.convert(answer["sla"], Report)))


def restart(home: Path, service: str, index: int = 0) -> int:
    """Planned replacement of one process, make before break: its new pid.

    Raises NotRunning, UnknownChild, or HomeError saying why the old one stayed.
    """
    run_dir = run_dir_of(Home(home))
    if not is_held(run_dir):
        raise NotRunning(home)
    answer = control.ask(run_dir, Command("restart", service, index), restart_s_max)
    if "unknown" in answer:
        raise UnknownChild(str(answer["error"]))
    if "error" in answer:
        raise HomeError(str(answer["error"]))
    return int(answer["pid"])


def replicas(home: Path, count: int) -> dict[str, Any]:
    """Run so many model runtimes from now on, at most `replicas_max`: their number, and of each
    that started its index, pid and milliseconds until it served.

    Raises NotRunning, or HomeError saying what was not possible.
    """
    run_dir = run_dir_of(Home(home))
    if not is_held(run_dir):
        raise NotRunning(home)
    answer = control.ask(run_dir, Command("replicas", count=count), restart_s_max)
    if "error" in answer:
        raise HomeError(str(answer["error"]))
    return answer


def run_dir_of(home: Home) -> Path:
    """Where the mesh that runs in this home has its sockets, by its own word; else where
    `mortise.toml` would put them. A running mesh is found whatever the file says by now."""
    return left_run_dir(home.state_dir) or home.run_dir


def _is_alive(pid: str) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _signal_holder(run_dir: Path) -> None:
    """The supervisor does not listen (yet, or any more): ask it by signal."""
    pid = holder(run_dir)
    if pid.isdecimal():
        try:
            os.kill(int(pid), signal.SIGTERM)
        except ProcessLookupError:
            return


def _start_detached(home: Home) -> int:
    """Start a supervisor in a session of its own, relay its lines, return when it is ready. Until
    then it has our standard error."""
    lines, lines_end = os.pipe()
    ready, ready_end = os.pipe()
    target = 3
    variables = {
        **os.environ,
        "PYTHONPATH": str(tree()),
        READY_VARIABLE: str(target),
    }
    command = [sys.executable, "-P", "-m", "supervisor", "start", "--home", str(home.path)]
    pid = os.posix_spawn(
        sys.executable,
        command,
        variables,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, lines_end, 1),
            (os.POSIX_SPAWN_DUP2, ready_end, target),
        ],
        setsid=True,
    )
    os.close(lines_end)
    os.close(ready_end)
    while chunk := os.read(lines, _relay_bytes):
        sys.stdout.write(chunk.decode(errors="replace"))
        sys.stdout.flush()
    if mark := os.read(ready, 1):
        return 0 if mark == _SERVES else EXIT_FAILED
    _, wait_status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(wait_status) or EXIT_FAILED


def _tell_launcher(serves: bool) -> None:
    """Up: let a launcher that waits for us go, and keep nothing of its terminal."""
    number = os.environ.pop(READY_VARIABLE, None)
    if number is None:
        return
    sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    os.write(int(number), _SERVES if serves else _SERVES_NOTHING)
    os.close(int(number))
