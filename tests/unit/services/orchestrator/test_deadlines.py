"""The wheel of deadlines."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.deadlines import Wheel

GRAIN_S = 0.005


@dataclass(eq=False)
class Item:
    """Something with a deadline."""

    deadline_s: float
    slot: int = 0


def test_an_item_is_due_after_its_slot_and_never_before_its_deadline() -> None:
    """Early by nothing, late by at most a grain and the tick."""
    wheel: Wheel[Item] = Wheel(GRAIN_S, 10.0)
    item = Item(10.0121)
    wheel.add(item)
    assert wheel.expired(10.0121) == []
    assert wheel.expired(10.0149) == []
    assert wheel.expired(10.0151) == [item]
    assert wheel.count == 0


def test_a_deadline_in_the_past_is_due_at_the_next_sweep() -> None:
    """A request that arrives late does not wait a whole turn of the wheel."""
    wheel: Wheel[Item] = Wheel(GRAIN_S, 10.0)
    assert wheel.expired(20.0) == []
    late = Item(3.0)
    wheel.add(late)
    assert wheel.expired(20.0 + 2 * GRAIN_S) == [late]


def test_a_discarded_item_is_forgotten_whatever_the_order() -> None:
    """Discarding twice, or after it was due, changes nothing."""
    wheel: Wheel[Item] = Wheel(GRAIN_S, 0.0)
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
    """Whatever is added, discarded and swept: nothing is due twice, early, or two grains late."""
    wheel: Wheel[Item] = Wheel(GRAIN_S, 0.0)
    now_s, waiting = 0.0, set()
    for after_s, is_discarded, advance_s in steps:
        item = Item(now_s + after_s)
        wheel.add(item)
        if is_discarded:
            wheel.discard(item)
        else:
            waiting.add(item)
        now_s += advance_s
        for due in wheel.expired(now_s):
            waiting.remove(due)
            assert due.deadline_s <= now_s
        assert all(item.deadline_s > now_s - 2 * GRAIN_S for item in waiting)
        assert wheel.count == len(waiting)
