"""Hardware counters of other processes, where the kernel permits them: last-level cache misses.

Source: perf_event_open(2). One descriptor for each thread that is there at the first look; threads
that begin later are counted with their maker's.
"""

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_ATTRIBUTES_BYTES = 128
_FLAGS_OFFSET = 40
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6
_CLOEXEC = 8
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


@dataclass(frozen=True, slots=True)
class Event:
    """`type` and `config` of perf_event_open(2)."""

    type: int
    config: int


CACHE_MISSES = Event(0, 3)
PAGE_FAULTS = Event(1, 2)
"""A software event, which needs no hardware: for tests."""


def open_counter(event: Event, thread: int) -> int:
    """A descriptor that counts a thread's event in user mode from now on. Raises OSError."""
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(38, f"no system call number is known for {platform.machine()}")
    attributes = bytearray(_ATTRIBUTES_BYTES)
    struct.pack_into("IIQ", attributes, 0, event.type, _ATTRIBUTES_BYTES, event.config)
    flags = _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR
    struct.pack_into("Q", attributes, _FLAGS_OFFSET, flags)
    buffer = (ctypes.c_char * _ATTRIBUTES_BYTES).from_buffer(attributes)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(number, buffer, thread, -1, -1, ctypes.c_ulong(_CLOEXEC))
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return descriptor


def why_not(event: Event) -> str:
    """Why this event cannot be counted here; "" where it can. Tries it on this process."""
    try:
        os.close(open_counter(event, os.getpid()))
    except OSError as error:
        paranoid = "absent"
        with suppress(OSError):
            paranoid = _PARANOID.read_text().strip()
        return f"perf_event_open: {error.strerror}; kernel.perf_event_paranoid is {paranoid}"
    return ""


class Counters:
    """One event of many processes. `reason` says why there are none."""

    def __init__(self, event: Event) -> None:
        self._event = event
        self.reason = why_not(event)
        self._open: dict[str, list[int]] = {}

    def total(self, identity: str, pid: int) -> int | None:
        """What a process counted since it was first asked for; None where nothing is permitted."""
        if self.reason:
            return None
        descriptors = self._open.get(identity)
        if descriptors is None:
            descriptors = self._open[identity] = self._of(pid)
        read = (os.read(descriptor, 8) for descriptor in descriptors)
        return sum(int.from_bytes(value, sys.byteorder) for value in read)

    def keep(self, identities: Container[str]) -> None:
        """Forget every other process."""
        for identity in [one for one in self._open if one not in identities]:
            for descriptor in self._open.pop(identity):
                os.close(descriptor)

    def _of(self, pid: int) -> list[int]:
        descriptors = []
        with suppress(OSError):  # it ended meanwhile, or is not ours: it counts what it could
            for thread in os.listdir(f"/proc/{pid}/task"):
                descriptors.append(open_counter(self._event, int(thread)))
        return descriptors
