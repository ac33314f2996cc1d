"""A steady beat: as many as were due, without turning in between."""

import asyncio
import os
import resource
import time
from collections.abc import Callable

import pytest
import uvloop

from services.jobs.ticks import PERIOD_S_MIN, Ticks

LOOPS = pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])


@LOOPS
def test_beats_never_come_before_their_time(
    make: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The tenth beat of a hundred a second is at least a tenth of a second away."""

    async def ten() -> float:
        began_s = time.monotonic()
        with Ticks(100.0) as ticks:
            for _ in range(10):
                await ticks.next()
        return time.monotonic() - began_s

    with asyncio.Runner(loop_factory=make) as runner:
        assert runner.run(ten()) >= 0.099


async def test_a_beat_that_was_missed_is_not_waited_for() -> None:
    """Whoever is late goes on at once."""
    with Ticks(2.0) as ticks:
        await asyncio.sleep(0.6)
        missed = asyncio.ensure_future(ticks.next())
        await asyncio.sleep(0)
        assert missed.done()


async def test_waiting_takes_no_processor_time() -> None:
    """Which a loop that turns until it is time does: half a second of it, all of it."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    ends_s = time.monotonic() + 0.5
    with Ticks(500.0) as ticks:
        while time.monotonic() < ends_s:
            await ticks.next()
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


def test_very_fast_beats_are_bounded_and_no_rate_is_refused() -> None:
    """What is due between two beats goes with the later one."""
    assert Ticks(1e6).period_s == PERIOD_S_MIN
    with pytest.raises(ValueError, match="a rate is positive, received 0 a second"):
        Ticks(0.0)


async def test_nothing_stays_open() -> None:
    """Not the timer, also when the body raises."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyError), Ticks(10.0):
        raise KeyError("body")
    assert len(os.listdir("/proc/self/fd")) == before
