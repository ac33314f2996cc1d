"""The only clock of the product: monotonic time for intervals, wall time for records.

Monotonic time is CLOCK_MONOTONIC, which every process of one machine shares, so stamps of
different hops compare. Nothing else here: deadlines are in `shared.deadline`.
"""

import time
from typing import Final

_monotonic: Final = time.monotonic
_monotonic_ns: Final = time.monotonic_ns
_time_ns: Final = time.time_ns


class Clock:
    """The machine's clock. Seconds are floats, microseconds integers; any thread may read it."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start that is the same for every process of the machine."""
        return _monotonic()

    def monotonic_us(self) -> int:
        """`monotonic` in whole microseconds."""
        return _monotonic_ns() // 1_000

    def wall(self) -> float:
        """Seconds since 1970 UTC; may step when the machine's time is corrected."""
        return time.time()

    def wall_us(self) -> int:
        """`wall` in whole microseconds."""
        return _time_ns() // 1_000


class ManualClock(Clock):
    """A clock that moves only when told to, for tests and simulation."""

    def __init__(self, monotonic_s: float = 1_000.0, wall_s: float = 1_700_000_000.0) -> None:
        self._monotonic_us = round(monotonic_s * 1e6)
        self._wall_us = round(wall_s * 1e6)

    def advance(self, seconds: float) -> None:
        """Move both clocks forward; a negative step is a programmer's error."""
        assert seconds >= 0, f"monotonic time cannot go back by {-seconds} s"
        self._monotonic_us += round(seconds * 1e6)
        self._wall_us += round(seconds * 1e6)

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock alone, in either direction, as a time correction does."""
        self._wall_us += round(seconds * 1e6)

    def monotonic(self) -> float:
        """Seconds, moved by `advance` alone."""
        return self._monotonic_us / 1e6

    def monotonic_us(self) -> int:
        """Microseconds, moved by `advance` alone."""
        return self._monotonic_us

    def wall(self) -> float:
        """Seconds since 1970, moved by `advance` and `step_wall`."""
        return self._wall_us / 1e6

    def wall_us(self) -> int:
        """Microseconds since 1970, moved by `advance` and `step_wall`."""
        return self._wall_us


SYSTEM = Clock()
