"""The tie between a child and its supervisor: what prctl(2) offers, by name.

Linux only. `bind` is the first act of every child, after any change of uid (which clears it).
"""

import ctypes
import os
import signal
import time

EXIT_ORPHANED = 71
"""The supervisor ended before the child could bind itself to it."""
_SET_PDEATHSIG, _SET_TIMERSLACK, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 1, 29, 36, 38
_timer_slack_ns = 1_000
_adoption_poll_s = 0.0002
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def bind(supervisor_pid: int, middle_pid: int = 0) -> None:
    """Die with the supervisor from now on, even stopped or in another session.

    After a double fork `middle_pid` is the process in between: the signal is asked for only once
    that one is gone, because it fires when the *current* parent ends. The wait is for the middle
    one to be gone, never for the supervisor to appear: it may have died meanwhile.
    """
    while middle_pid and os.getppid() == middle_pid:
        time.sleep(_adoption_poll_s)
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor_pid:
        os._exit(EXIT_ORPHANED)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (before the first child)."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def refuse_new_privileges() -> None:
    """No exec of this process or a descendant ever gains a privilege (set-uid bits do nothing)."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def be_punctual() -> None:
    """Sleeps and time-outs of this thread, and of all threads and processes that it begins, are no
    more than a microsecond late by the kernel's choice; by default it is 50."""
    _prctl(_SET_TIMERSLACK, _timer_slack_ns)
