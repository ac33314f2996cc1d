"""Moments are met, never before their time, without turning in between."""

import asyncio
import os
import resource
import time
from collections.abc import Callable

import pytest
import uvloop

from services.jobs.ticks import PERIOD_S_MIN, Ticks, send_at


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_nothing_comes_before_its_time(make: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Odd periods, of which a rounded sum would drift: each of fifty moments has come."""

    async def late_s() -> list[float]:
        began_s, found = time.monotonic(), []
        with Ticks() as ticks:
            for number in range(1, 51):
                due_s = began_s + number / 701
                await ticks.until(due_s)
                found.append(time.monotonic() - due_s)
        return found

    with asyncio.Runner(loop_factory=make) as runner:
        assert min(runner.run(late_s())) > -1e-6


async def test_a_moment_that_has_passed_is_not_waited_for_but_others_have_a_turn() -> None:
    """Whoever is behind goes on at once, and answers are still read."""
    turns: list[int] = []
    with Ticks() as ticks:
        for number in range(3):
            asyncio.get_running_loop().call_soon(turns.append, number)
            async with asyncio.timeout(5.0):
                await ticks.until(time.monotonic() - 10.0)
            assert turns == list(range(number + 1))
        async with asyncio.timeout(5.0):
            await ticks.until(0.0)


async def test_moments_close_together_are_met_together() -> None:
    """A thousand that are all due take a thousand least periods."""
    began_s = time.monotonic()
    with Ticks() as ticks:
        for _ in range(50):
            await ticks.until(began_s)
    assert time.monotonic() - began_s >= 49 * PERIOD_S_MIN


async def test_waiting_takes_no_processor_time() -> None:
    """Which a loop that turns until it is time does: half a second of it, all of it."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    began_s = time.monotonic()
    with Ticks() as ticks:
        for number in range(250):
            await ticks.until(began_s + number / 500)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


async def test_nothing_stays_open() -> None:
    """Not the timer, also when the body raises."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyError), Ticks():
        raise KeyError("body")
    assert len(os.listdir("/proc/self/fd")) == before


async def test_each_number_is_sent_once_in_order_and_not_before_it_is_due() -> None:
    """A rate that has begun half a second ago: what is due by now goes at once, the rest later."""
    sent: list[tuple[int, float]] = []
    began_s = time.monotonic() - 0.5

    def send(number: int, due_s: float) -> None:
        assert time.monotonic() >= due_s - 1e-6
        sent.append((number, due_s))

    await send_at(100.0, send, began_s=began_s, total=60)
    assert sent == [(number, began_s + number / 100.0) for number in range(60)]
    await send_at(100.0, send, began_s=began_s, total=0)
    assert len(sent) == 60


async def test_without_a_total_it_goes_on_until_cancelled() -> None:
    """And leaves no timer behind."""
    before, sent = len(os.listdir("/proc/self/fd")), asyncio.Event()
    task = asyncio.create_task(
        send_at(1_000.0, lambda number, _due_s: number > 9 and sent.set(), began_s=time.monotonic())
    )
    await asyncio.wait_for(sent.wait(), 10.0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(os.listdir("/proc/self/fd")) == before
