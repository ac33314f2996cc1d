"""A steady beat for whoever sends at a rate: a kernel timer, to some tens of microseconds.

An event loop's own sleep is rounded to milliseconds; made up for by turning without sleep it takes
a whole core, which on a small machine is what the server should have had.
"""

import asyncio
import ctypes
import os
import time
from types import TracebackType
from typing import Self

PERIOD_S_MIN = 0.0002
"""Faster beats cost the sender more than they place better: what is due meanwhile goes at once."""
_libc = ctypes.CDLL(None, use_errno=True)
_NANOSECONDS = 1_000_000_000


class _Timer(ctypes.Structure):
    """`struct itimerspec`. Source: timerfd_settime(2)."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class Ticks:
    """Beats every 1 / `per_s` seconds (PERIOD_S_MIN at least), the first one period after the
    `with` begins. Use: `with Ticks(rate) as ticks: … await ticks.next()`, on the running loop."""

    def __init__(self, per_s: float) -> None:
        """Raises ValueError for a rate that is not positive."""
        if per_s <= 0:
            raise ValueError(f"a rate is positive, received {per_s:g} a second")
        self.period_s = max(PERIOD_S_MIN, 1.0 / per_s)
        self._beat = asyncio.Event()
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Start. Raises OSError."""
        self._descriptor = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        seconds, nanoseconds = divmod(round(self.period_s * _NANOSECONDS), _NANOSECONDS)
        timer = _Timer(seconds, nanoseconds, seconds, nanoseconds)
        if _libc.timerfd_settime(self._descriptor, 0, ctypes.byref(timer), None):
            error = ctypes.get_errno()
            os.close(self._descriptor)
            raise OSError(error, "timerfd_settime")
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_beat)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)

    async def next(self) -> None:
        """Until the next beat; at once if one has been missed."""
        await self._beat.wait()
        self._beat.clear()

    def _on_beat(self) -> None:
        os.read(self._descriptor, 8)
        self._beat.set()
