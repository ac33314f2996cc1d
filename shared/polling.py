"""Whether a loop that has nothing to do keeps its core for a moment, because more is about to come.

A process that sleeps is woken tens of microseconds later, with caches that others have used; of the
latency of a caller who asks again at once that is a third. So a loop turns instead of sleeping, for
one window at most, where the pauses of late were shorter than that. They are learnt from without
turning, and who is pushed aside while it turns learns that its core is wanted (decision 0027).
"""

import asyncio
from typing import Final

from shared.clock import Clock

share_min: Final = 0.75
"""A loop turns where so many of the pauses of late were quiet and shorter than the window."""
memory: Final = 1 / 16
"""The weight of the latest pause."""
aside_s: Final = 500e-6
"""A turn takes 2 us and whoever asks 50. A core that was gone for longer is wanted by others."""


class Poller:
    """Of one loop, on its thread only. A window of 0 s turns it off. `polls` counts pauses in which
    it turned, `in_vain` those of them that were longer."""

    __slots__ = ("_clock", "_loop", "_share", "_touched_s", "_turned_s", "_until_s",
                 "_was_quiet", "_window_s", "in_vain", "is_turning", "polls")  # fmt: skip

    def __init__(self, clock: Clock, window_s: float) -> None:
        self.polls = self.in_vain = 0
        self._clock = clock
        self._window_s = window_s
        self._share = 0.0
        self._was_quiet = False
        self._touched_s = self._until_s = self._turned_s = 0.0
        self.is_turning = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def touched(self, is_quiet: bool) -> None:
        """Something was done, and a pause begins. `is_quiet`: for one caller, with nobody else's
        requests in progress; among several the processes wake each other, and need the cores."""
        if not self._window_s:
            return
        now_s = self._clock.monotonic()
        is_short = self._was_quiet and now_s - self._touched_s <= self._window_s
        self._share += ((1.0 if is_short else 0.0) - self._share) * memory
        self._touched_s, self._was_quiet = now_s, is_quiet
        if not is_quiet or self._share < share_min:
            self._until_s = 0.0
            return
        self.polls += 1
        self._until_s = now_s + self._window_s
        if not self.is_turning:
            self.is_turning, self._turned_s = True, now_s
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        now_s, before_s = self._clock.monotonic(), self._turned_s
        self._turned_s = now_s
        if now_s - before_s > aside_s and self._touched_s <= before_s:
            self._share /= 2
            self._until_s = before_s  # over, and in vain
        if now_s <= self._until_s:
            assert self._loop is not None
            self._loop.call_soon(self._turn)
            return
        self.is_turning = False
        if self._until_s:
            self.in_vain += 1
