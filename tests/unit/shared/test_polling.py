"""A loop turns where pauses are short, and nowhere else; never longer than its window."""

import asyncio

from shared.clock import ManualClock
from shared.polling import Poller, aside_s

WINDOW_S = 300e-6
SHORT_S, LONG_S = 100e-6, 1e-3
TURN_S = 2e-6
LEARNT = 25
"""Pauses after which any habit is known."""


class Pauses:
    """A poller whose time passes by itself while its loop turns."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self.clock = ManualClock()
        self.poller = Poller(self.clock, window_s)

    async def after(self, pause_s: float, *, is_quiet: bool = True) -> int:
        """Something is done, then there is a pause: in how many turns of it the loop turned."""
        self.poller.touched(is_quiet)
        turns, left_s = 0, pause_s
        await asyncio.sleep(0)
        while left_s > TURN_S / 2 and self.poller.is_turning:
            turns += 1
            self.clock.advance(TURN_S)
            left_s -= TURN_S
            await asyncio.sleep(0)
        self.clock.advance(max(0.0, left_s))
        return turns

    async def learn(self, pause_s: float) -> None:
        """A habit."""
        for _ in range(LEARNT):
            await self.after(pause_s)


async def test_it_turns_through_short_pauses_once_they_are_usual() -> None:
    """Not through the first ones: nothing was learnt yet."""
    pauses = Pauses()
    assert await pauses.after(SHORT_S) == 0
    await pauses.learn(SHORT_S)
    assert await pauses.after(SHORT_S) == round(SHORT_S / TURN_S)
    assert pauses.poller.in_vain == 0 < pauses.poller.polls


async def test_a_pause_that_is_longer_all_the_same_costs_one_window() -> None:
    """And long pauses once more end the habit, in which nothing is spent any more."""
    pauses = Pauses()
    await pauses.learn(SHORT_S)
    turns = await pauses.after(LONG_S)
    assert abs(turns * TURN_S - WINDOW_S) <= 2 * TURN_S
    await pauses.learn(LONG_S)
    assert await pauses.after(LONG_S) == 0
    assert 1 <= pauses.poller.in_vain <= 6


async def test_callers_who_come_now_and_then_cost_nothing() -> None:
    """A thousand a second: no pause is short, so that it never turns."""
    pauses = Pauses()
    for _ in range(200):
        assert await pauses.after(LONG_S) == 0
    assert pauses.poller.polls == 0


async def test_short_pauses_between_long_ones_cost_nothing() -> None:
    """A model that computes for a millisecond, for a caller who asks again at once; or a thousand
    requests a second of a quick model: half of the pauses are short, and to turn in them helps
    nobody while the others sleep."""
    pauses = Pauses()
    for _ in range(100):
        assert await pauses.after(LONG_S) == 0
        assert await pauses.after(SHORT_S) == 0
    assert pauses.poller.polls == 0


async def test_single_requests_among_many_cost_nothing() -> None:
    """Sixty-four callers: a batch of one row now and then, and all pauses short."""
    pauses = Pauses()
    for number in range(200):
        assert await pauses.after(SHORT_S, is_quiet=number % 2 == 0) == 0
    assert pauses.poller.polls == 0


async def test_with_others_in_progress_the_loop_is_left_alone() -> None:
    """They wake it, and its core is theirs meanwhile."""
    pauses = Pauses()
    await pauses.learn(SHORT_S)
    assert await pauses.after(SHORT_S, is_quiet=False) == 0
    assert await pauses.after(SHORT_S) > 0


async def test_who_is_pushed_aside_gives_way() -> None:
    """A turn that took a millisecond belonged to somebody else: sleep, and learn anew."""
    pauses = Pauses()
    await pauses.learn(SHORT_S)
    pauses.poller.touched(is_quiet=True)
    await asyncio.sleep(0)
    pauses.clock.advance(2 * aside_s)
    await asyncio.sleep(0)
    assert not pauses.poller.is_turning
    assert pauses.poller.in_vain == 1
    for _ in range(3):
        assert await pauses.after(SHORT_S) == 0, "it sleeps for some more"
    await pauses.learn(SHORT_S)
    assert await pauses.after(SHORT_S) > 0, "and not for ever"


async def test_a_window_of_0_turns_it_off() -> None:
    """Nothing is learnt, nothing is spent."""
    pauses = Pauses(window_s=0.0)
    await pauses.learn(0.0)
    assert await pauses.after(0.0) == 0
    assert pauses.poller.polls == 0
