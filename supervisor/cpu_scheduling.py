"""Gives the threads of a process a nice level or SCHED_IDLE, or a process a cgroup's weight, and
says why where the machine does not permit it. Talks to the kernel; decides nothing.
"""

import os
from contextlib import suppress
from pathlib import Path

from supervisor.cpu_weights import Treatment

_MOUNTS = Path("/proc/self/mountinfo")
_OWN = Path("/proc/self/cgroup")
_CONTROLLER = "cpu"
_rounds_max = 3
"""A thread that begins while the others are changed is found in the next round."""


class NotPermitted(Exception):
    """The kernel says no; the message names what is missing."""


def current(pid: int) -> Treatment:
    """Of the main thread. Raises ProcessLookupError."""
    is_idle = os.sched_getscheduler(pid) == os.SCHED_IDLE
    return Treatment(os.getpriority(os.PRIO_PROCESS, pid), is_idle=is_idle)


def apply(pid: int, wanted: Treatment) -> None:
    """To every thread: the kernel keeps both by thread, and a new one has its maker's.

    Raises NotPermitted: back to a larger share needs CAP_SYS_NICE, or RLIMIT_NICE of the level;
    ProcessLookupError."""
    for _ in range(_rounds_max):
        changed = [_apply_to(thread, wanted) for thread in _threads(pid)]
        if not any(changed):
            return


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except FileNotFoundError as error:
        raise ProcessLookupError(f"pid {pid} has ended") from error


def _apply_to(thread: int, wanted: Treatment) -> bool:
    """Whether something was changed; a thread that has ended is fine."""
    try:
        found = current(thread)
        if found.is_idle != wanted.is_idle:
            policy = os.SCHED_IDLE if wanted.is_idle else os.SCHED_OTHER
            os.sched_setscheduler(thread, policy, os.sched_param(0))
        if not wanted.is_idle and found.nice != wanted.nice:
            os.setpriority(os.PRIO_PROCESS, thread, wanted.nice)
    except ProcessLookupError:
        return False
    except PermissionError as error:
        raise NotPermitted(
            f"{wanted} after {found} needs CAP_SYS_NICE, or a RLIMIT_NICE of {20 - wanted.nice}"
        ) from error
    return found.is_idle != wanted.is_idle or (not wanted.is_idle and found.nice != wanted.nice)


class Cgroups:
    """The cgroup v2 subtree that was delegated to this process, or why there is none (`reason`).

    To weigh children, our own group must hold processes in leaves only: the supervisor moves into
    one, and each weighed runtime gets one of its own.
    """

    def __init__(self, root: Path | None, reason: str) -> None:
        self._root, self.reason = root, reason

    @classmethod
    def find(cls, mounts: Path = _MOUNTS, own: Path = _OWN) -> "Cgroups":
        """Call it before the first child. Never raises."""
        try:
            return cls._open(mounts.read_text(), own.read_text())
        except OSError as error:
            return cls(None, f"cgroup v2: {error.filename}: {error.strerror}")

    @classmethod
    def _open(cls, mounts: str, own: str) -> "Cgroups":
        fields = [line.split() for line in mounts.splitlines() if " - cgroup2 " in line]
        paths = [line[3:] for line in own.splitlines() if line.startswith("0::")]
        if not fields or not paths:
            return cls(None, "cgroup v2 is not mounted")
        root = Path(fields[0][4]) / paths[0].lstrip("/")
        if _CONTROLLER not in (root / "cgroup.controllers").read_text().split():
            return cls(None, f"cgroup v2: {root} has no controller cpu; Delegate=cpu in the unit")
        present = (root / "cgroup.procs").read_text().split()
        if present != [str(os.getpid())]:
            return cls(
                None, f"cgroup v2: {root} holds {len(present)} processes, it must hold ours alone"
            )
        leaf = root / "supervisor"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
        (root / "cgroup.subtree_control").write_text(f"+{_CONTROLLER}")
        return cls(root, "")

    @property
    def is_there(self) -> bool:
        """Whether weights can be given."""
        return self._root is not None

    def apply(self, name: str, pid: int, weight: int) -> None:
        """Put a process into its group with this weight. Raises NotPermitted."""
        assert self._root is not None, "asked only where there is one"
        folder = self._root / name
        try:
            folder.mkdir(exist_ok=True)
            (folder / "cpu.weight").write_text(str(weight))
            (folder / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise NotPermitted(f"cgroup {name}: {error.filename}: {error.strerror}") from error

    def close(self) -> None:
        """Remove the groups of processes that have ended."""
        if self._root is not None:
            for folder in self._root.glob("model_runtime.*"):
                with suppress(OSError):
                    folder.rmdir()
