"""The wheel of deadlines."""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.alarm import Alarm
from services.orchestrator.deadlines import NEVER, Wheel
from shared.clock import Clock

GRAIN_S = 0.005


@dataclass(eq=False)
class Item:
    """Something with a deadline."""

    deadline_s: float
    slot: int = 0


def wheel_of() -> tuple[Wheel[Item], list[float]]:
    """An empty wheel, and the moments at which it asked to be looked at."""
    asked: list[float] = []
    return Wheel(GRAIN_S, asked.append), asked


def test_an_item_is_due_after_its_slot_and_never_before_its_deadline() -> None:
    """Early by nothing, late by at most a grain."""
    wheel, asked = wheel_of()
    item = Item(10.0121)
    wheel.add(item)
    assert asked == [pytest.approx(10.015)]
    assert wheel.expired(10.0121) == []
    assert wheel.expired(10.0149) == []
    assert wheel.expired(10.0151) == [item]
    assert wheel.count == 0
    assert wheel.next_s == NEVER


def test_a_deadline_in_the_past_is_due_at_once() -> None:
    """A request that arrives late is not waited for."""
    wheel, asked = wheel_of()
    late = Item(3.0)
    wheel.add(late)
    assert asked[0] < 20.0
    assert wheel.expired(20.0) == [late]


def test_only_an_earlier_deadline_asks_again() -> None:
    """Requests with the default time-out set no timer while one is set."""
    wheel, asked = wheel_of()
    for deadline_s in (15.0, 16.0, 15.0, 17.0):
        wheel.add(Item(deadline_s))
    assert len(asked) == 1
    wheel.add(Item(12.0))
    assert asked[1] == pytest.approx(12.005)


def test_a_discarded_item_is_forgotten_whatever_the_order() -> None:
    """Discarding twice, or after it was due, changes nothing."""
    wheel, _ = wheel_of()
    kept, gone = Item(1.0), Item(1.0)
    wheel.add(kept)
    wheel.add(gone)
    wheel.discard(gone)
    wheel.discard(gone)
    assert wheel.count == 1
    assert wheel.expired(2.0) == [kept]
    wheel.discard(kept)
    assert wheel.count == 0


@given(st.lists(st.tuples(st.floats(0.0, 50.0), st.booleans(), st.floats(0.0, 3.0)), max_size=60))
def test_every_item_leaves_once_and_in_time(steps: list[tuple[float, bool, float]]) -> None:
    """Whatever is added, discarded and looked at when asked: nothing is due twice, early, or more
    than a grain after its deadline."""
    wheel, asked = wheel_of()
    now_s, waiting = 0.0, set()
    for after_s, is_discarded, advance_s in steps:
        item = Item(now_s + after_s)
        wheel.add(item)
        if is_discarded:
            wheel.discard(item)
        else:
            waiting.add(item)
        ends_s = now_s + advance_s
        while (rings_s := min([*asked, wheel.next_s])) <= ends_s:
            asked.clear()
            now_s = max(now_s, rings_s + 1e-9)
            for due in wheel.expired(now_s):
                waiting.remove(due)
                assert due.deadline_s <= now_s <= max(due.deadline_s, 0.0) + 1.1 * GRAIN_S
        now_s = max(now_s, ends_s)
        assert wheel.count == len(waiting)


async def test_the_alarm_rings_once_for_the_earliest_moment() -> None:
    """An earlier moment replaces the timer, a later one does not; `ring` says when next."""
    rung: list[float] = []
    clock = Clock()

    def ring(now_s: float) -> float:
        rung.append(now_s)
        return NEVER

    alarm, start_s = Alarm(clock, ring), clock.monotonic()
    for after_s in (60.0, 0.0, 30.0):
        alarm.by(start_s + after_s)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(rung) == 1
    assert alarm._timer is None
