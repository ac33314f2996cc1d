"""When the next request is due: a kernel timer, to some tens of microseconds.

An event loop's own sleep is rounded to milliseconds; made up for by turning without sleep it takes
a whole core, which on a small machine is what the server should have had.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

PERIOD_S_MIN = 0.0002
"""Waking more often costs the sender more than it places better: what is due meanwhile goes at
once."""
_libc = ctypes.CDLL(None, use_errno=True)
_ABSOLUTE = 1
"""TFD_TIMER_ABSTIME. Source: timerfd_settime(2)."""


class _Timer(ctypes.Structure):
    """`struct itimerspec`. Source: timerfd_settime(2)."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("at_s", ctypes.c_long),
        ("at_ns", ctypes.c_long),
    )


class Ticks:
    """Waits for moments of `time.monotonic`. Use, on the running loop: `with Ticks() as ticks: …
    await ticks.until(due_s)`. One waits at a time."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._came = asyncio.Event()
        self._woken_s = 0.0
        self._timer = _Timer()

    def __enter__(self) -> Self:
        """Raises OSError."""
        self._descriptor = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_time)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for nothing more."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    async def until(self, due_s: float) -> None:
        """Return at `due_s` or as soon after it as may be, PERIOD_S_MIN after the last time at the
        earliest; the loop has a turn in any case. Raises OSError."""
        self._came.clear()
        at_ns = max(1, round(max(due_s, self._woken_s + PERIOD_S_MIN) * 1e9))
        self._timer.at_s, self._timer.at_ns = divmod(at_ns, 1_000_000_000)
        timer = ctypes.byref(self._timer)
        if _libc.timerfd_settime(self._descriptor, _ABSOLUTE, timer, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        await self._came.wait()
        self._woken_s = time.monotonic()

    def _on_time(self) -> None:
        os.read(self._descriptor, 8)
        self._came.set()


async def send_at(
    rate_per_s: float,
    send: Callable[[int, float], None],
    *,
    began_s: float,
    total: int | None = None,
) -> None:
    """Call `send(number, due_s)` for the numbers from 0, number n due at `began_s` + n / rate on
    `time.monotonic`: `total` of them, or until cancelled. What is due together goes together, and
    between two such lots the loop has a turn."""
    sent = 0
    with Ticks() as ticks:
        while True:
            due = int((time.monotonic() - began_s) * rate_per_s) + 1
            due = due if total is None else min(due, total)
            for number in range(sent, due):
                send(number, began_s + number / rate_per_s)
            sent = max(sent, due)
            if sent == total:
                return
            await ticks.until(began_s + sent / rate_per_s)
