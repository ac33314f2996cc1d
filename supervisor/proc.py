"""What /proc tells of one process: state, CPU time, memory, descriptors, bytes moved. Reads only.

Source of every field: proc_pid_stat(5), proc_pid_io(5), proc_pid_fd(5).
"""

import os
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STOPPED, RUNNABLE = "T", "R"


@dataclass(frozen=True, slots=True)
class Stat:
    """State letter of the main thread; CPU seconds of all threads; resident bytes, shared pages
    included."""

    state: str
    cpu_s: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a process at `at_s`. `storage_bytes` is what it had storage read and write, and
    `call_bytes` what its read and write calls moved, files, pipes and sockets alike; both since it
    began, None where the kernel does not tell."""

    at_s: float
    cpu_s: float
    resident_bytes: int
    descriptors: int
    storage_bytes: int | None
    call_bytes: int | None


def stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # After the name come state (3), …, utime (14), stime (15), rss (24).
    cpu_s = (int(words[11]) + int(words[12])) / _TICKS_PER_S
    return Stat(words[0], cpu_s, int(words[21]) * _PAGE_BYTES)


def is_any_thread_runnable(pid: int) -> bool:
    """Whether some thread wants a CPU or has one."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(_thread_state(pid, thread) == RUNNABLE for thread in threads)


def sample(pid: int, at_s: float) -> Sample | None:
    """One look; None when there is no such process, or it is not ours to look at."""
    found = stat(pid)
    if found is None:
        return None
    try:
        descriptors = _descriptors(pid)
    except OSError:
        return None
    storage_bytes, call_bytes = _bytes_moved(pid)
    return Sample(at_s, found.cpu_s, found.resident_bytes, descriptors, storage_bytes, call_bytes)


def _descriptors(pid: int) -> int:
    # Since Linux 6.2 the folder's size is their number; before that it is 0.
    folder = f"/proc/{pid}/fd"
    return os.stat(folder).st_size or len(os.listdir(folder))


def _bytes_moved(pid: int) -> tuple[int | None, int | None]:
    try:
        text = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return None, None
    io = {name: int(value) for name, value in (line.split(": ") for line in text.splitlines())}
    return io["read_bytes"] + io["write_bytes"], io["rchar"] + io["wchar"]


def _thread_state(pid: int, thread: str) -> str:
    try:
        text = Path(f"/proc/{pid}/task/{thread}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]
