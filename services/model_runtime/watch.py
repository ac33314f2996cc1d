"""Notices a forward that hangs on the compute thread, which nothing can interrupt.

What a forward may take is the model's own (`forward_s_max`). Its age is counted in looks of the
loop, each worth what passed since the last one but at most two ticks: where the whole machine
stands still or starves, the looks are late as well, and nobody is judged for that.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from contracts.methods import METHODS
from contracts.pack import ModelContract
from contracts.types import UNSET
from services.model_runtime.config import (
    forward_p99_factor,
    forward_s_min,
    hang_share,
    prime_s_max,
    watch_tick_s,
)
from shared.clock import Clock

_execute_s = METHODS["model_runtime"]["execute"].budget.timeout_ms / 1_000


class Watched(Protocol):
    """A job of the compute thread that runs forwards."""

    @property
    def forwards(self) -> int:
        """How many have begun; grows while it makes progress."""
        ...

    @property
    def forward_s_max(self) -> float:
        """What one of them may take."""
        ...


class Jobs(Protocol):
    """The thread that is watched (`worker.Worker`)."""

    pending: int
    ended: int

    def running(self) -> Watched | None:
        """The job that runs, if it is one that is watched."""
        ...


def forward_s_max(contract: ModelContract) -> float:
    """Seconds that a forward of this model may take, by its contract: a multiple of the p99 it
    promises, else a share of the time that the caller of `execute` waits; never more than that
    share, so that who waits behind it can still be served elsewhere in time."""
    latest_s = hang_share * _execute_s
    if contract.p99_ms is UNSET:
        return latest_s
    return min(latest_s, max(forward_s_min, forward_p99_factor * contract.p99_ms / 1_000))


class Sighting:
    """How long the same step of the same job has been seen to run. Pure."""

    def __init__(self) -> None:
        self._step = (-1, -1)
        self._looked_s = 0.0
        self._age_s = 0.0

    def age_s(self, step: tuple[int, int], now_s: float) -> float:
        """Look again; `step` changes with each job and forward."""
        if step != self._step:
            self._step, self._age_s = step, 0.0
        else:
            self._age_s += min(now_s - self._looked_s, 2 * watch_tick_s)
        self._looked_s = now_s
        return self._age_s


class Watch:
    """Looks while jobs are pending; `on_hung(job, seconds, limit)` is called once, and nobody looks
    any more. On the loop's thread only."""

    def __init__(
        self, jobs: Jobs, clock: Clock, on_hung: Callable[[Watched | None, float, float], None]
    ) -> None:
        self.is_looking = False
        self._jobs = jobs
        self._clock = clock
        self._on_hung = on_hung
        self._sighting = Sighting()

    def begin(self) -> None:
        """A job was submitted while nobody looked."""
        self.is_looking = True
        self._look_later()

    def look(self) -> None:
        """One look."""
        jobs = self._jobs
        if not jobs.pending:
            self.is_looking = False
            return
        job = jobs.running()
        step = (jobs.ended, 0 if job is None else job.forwards)
        limit_s = prime_s_max if job is None else job.forward_s_max
        age_s = self._sighting.age_s(step, self._clock.monotonic())
        if age_s < limit_s:
            self._look_later()
        else:
            self._on_hung(job, age_s, limit_s)

    def _look_later(self) -> None:
        asyncio.get_running_loop().call_later(watch_tick_s, self.look)
