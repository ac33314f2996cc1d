"""A forward that hangs: what it may take, what counts as time, when it is told."""

from typing import Any

import msgspec
import pytest

from contracts.types import UNSET
from services.model_runtime.config import watch_tick_s
from services.model_runtime.watch import Sighting, Watch, Watched, forward_s_max
from shared.clock import ManualClock
from tests.unit.services.model_runtime.conftest import manifest


class Job:
    """Its forwards and its limit, as the test sets them."""

    def __init__(self, forward_s_max: float = 1.0) -> None:
        self.forwards = 1
        self.forward_s_max = forward_s_max


class Jobs:
    """A thread with one job."""

    def __init__(self, job: Job | None) -> None:
        self.job = job
        self.pending, self.ended = 1, 0

    def running(self) -> Watched | None:
        """The job."""
        return self.job


class Rig:
    """A watch over one job, looked at by hand."""

    def __init__(self, clock: ManualClock, job: Job | None) -> None:
        self.clock = clock
        self.jobs = Jobs(job)
        self.hung: list[tuple[Any, float, float]] = []
        self.watch = Watch(self.jobs, clock, lambda *told: self.hung.append(told))

    def look(self, times: int, tick_s: float = watch_tick_s) -> None:
        """So many looks, so far apart, until it is told."""
        for _ in range(times):
            if not self.hung:
                self.watch.look()
                self.clock.advance(tick_s)


@pytest.mark.parametrize(
    ("p99_ms", "limit_s"),
    [(UNSET, 4.0), (1, 1.0), (100, 1.0), (200, 2.0), (400, 4.0), (9_000, 4.0)],
)
def test_the_limit_follows_the_contract_and_leaves_time_for_a_successor(
    p99_ms: Any, limit_s: float
) -> None:
    """Ten times the promised p99, from 1 s to 0.8 of the 5 s that `execute` is waited for."""
    contract = msgspec.structs.replace(manifest().contract, p99_ms=p99_ms)
    assert forward_s_max(contract) == limit_s


async def test_a_forward_over_its_limit_is_told_once(clock: ManualClock) -> None:
    """With the job, its age and its limit; nobody looks after that."""
    rig = Rig(clock, Job())
    rig.look(20)
    assert rig.hung == []
    rig.look(10)
    ((job, age_s, limit_s),) = rig.hung
    assert (job, limit_s) == (rig.jobs.job, 1.0)
    assert 1.0 <= age_s < 1.0 + 2 * watch_tick_s


async def test_another_forward_and_another_job_are_progress(clock: ManualClock) -> None:
    """Isolation runs several forwards in one job, each with the whole limit."""
    rig = Rig(clock, Job())
    rig.look(15)
    assert rig.jobs.job is not None
    rig.jobs.job.forwards += 1
    rig.look(15)
    rig.jobs.ended += 1
    rig.look(15)
    assert rig.hung == []


async def test_a_starved_machine_is_not_judged_by_the_clock(clock: ManualClock) -> None:
    """30 s in which the loop looked six times count as at most six double ticks."""
    rig = Rig(clock, Job())
    rig.look(6, tick_s=5.0)
    assert rig.hung == []


async def test_without_jobs_nobody_looks(clock: ManualClock) -> None:
    """The next job begins it again; ages do not carry over."""
    rig = Rig(clock, Job())
    rig.watch.begin()
    assert rig.watch.is_looking
    rig.look(15)
    rig.jobs.pending, rig.jobs.ended = 0, 1
    rig.look(1)
    assert not rig.watch.is_looking
    rig.jobs.pending = 1
    rig.look(15)
    assert rig.hung == []


async def test_the_first_row_through_a_model_has_a_minute(clock: ManualClock) -> None:
    """It is no batch: longer, and bounded."""
    rig = Rig(clock, None)
    rig.look(1_190)
    assert rig.hung == []
    rig.look(20)
    ((job, _, limit_s),) = rig.hung
    assert (job, limit_s) == (None, 60.0)


def test_a_sighting_begins_with_each_step() -> None:
    """The first look at a step is its beginning, however long ago it began."""
    sighting = Sighting()
    assert sighting.age_s((0, 1), 100.0) == 0.0
    assert sighting.age_s((0, 1), 100.05) == pytest.approx(0.05)
    assert sighting.age_s((0, 2), 100.1) == 0.0
