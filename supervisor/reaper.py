"""The only wait in the process: every ended child is reaped here, strangers included.

SIGCHLD wakes the loop, and one sweep takes all that ended. Children are made by posix_spawn or by
the template, never by `subprocess`, which would wait on its own and steal a status.
"""

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

early_max = 256
"""Exits kept of processes nobody has named yet."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: by itself with `code`, or by the signal `signal_number` (else 0)."""

    pid: int
    code: int
    signal_number: int

    def __str__(self) -> str:
        if self.signal_number:
            return f"killed by {_signal_name(self.signal_number)}"
        return f"exit code {self.code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


OnExit = Callable[[Exit], None]


class Reaper:
    """Reports the exit of each watched pid once. Lives on the main thread's loop."""

    def __init__(self) -> None:
        self._watched: dict[int, OnExit] = {}
        self._early: dict[int, Exit] = {}
        self._expected = 0
        self.strangers = 0
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.sweep)

    def close(self) -> None:
        """Stop listening to SIGCHLD."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def watch(self, pid: int, on_exit: OnExit) -> None:
        """Report this child's exit; at once (next turn) if it has ended already."""
        if (ended := self._early.pop(pid, None)) is not None:
            asyncio.get_running_loop().call_soon(on_exit, ended)
        else:
            self._watched[pid] = on_exit

    def expect(self, change: int) -> None:
        """+1: a pid is on its way to us, so keep exits of unknown ones; −1: it has come, or never
        will. With none on its way nothing is kept: a pid may be used again."""
        self._expected += change
        assert self._expected >= 0, "each expected pid comes once"
        if self._expected == 0:
            self._early.clear()

    def kill_strangers(self) -> int:
        """End descendants that nobody here watches: what a dead service left behind.

        Does nothing while a pid is on its way to us, since it could be that one.
        """
        if self._expected:
            return 0
        strangers = [pid for pid in own_children() if pid not in self._watched]
        for pid in strangers:
            os.kill(pid, signal.SIGKILL)
        return len(strangers)

    def sweep(self) -> None:
        """Reap everything that has ended."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                return
            if ended is None:
                return
            by_itself = ended.si_code == os.CLD_EXITED
            exit_ = Exit(
                ended.si_pid,
                ended.si_status if by_itself else 0,
                0 if by_itself else ended.si_status,
            )
            on_exit = self._watched.pop(exit_.pid, None)
            if on_exit is not None:
                on_exit(exit_)
                continue
            self.strangers += 1
            if self._expected and len(self._early) < early_max:
                self._early[exit_.pid] = exit_


def own_children() -> list[int]:
    """Pids of our children, adopted ones included. Source: proc(5), task/TID/children.

    Empty where the kernel does not offer the list. All children belong to the main thread.
    """
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []
