"""One timer for everything that has a deadline."""

import asyncio
from collections.abc import Callable

from services.orchestrator.deadlines import NEVER
from shared.clock import Clock


class Alarm:
    """Calls `ring(now_s)` at the earliest moment that was asked for; `ring` returns the next one.

    On the loop's thread only; needs a running loop once something is asked for.
    """

    def __init__(self, clock: Clock, ring: Callable[[float], float]) -> None:
        self._clock = clock
        self._ring = ring
        self._at_s = NEVER
        self._timer: asyncio.TimerHandle | None = None

    def by(self, when_s: float) -> None:
        """Ring no later than this; what was asked for before stays."""
        if when_s >= self._at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._at_s = when_s
        after_s = max(0.0, when_s - self._clock.monotonic())
        self._timer = asyncio.get_running_loop().call_later(after_s, self._rung)

    def _rung(self) -> None:
        self._at_s, self._timer = NEVER, None
        self.by(self._ring(self._clock.monotonic()))
