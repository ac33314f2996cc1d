"""The share of the replicas' time that shadows may use."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.orchestrator.config import shadow_credit_s_max
from services.orchestrator.shadow import Share


def test_a_share_is_earned_spent_and_owed() -> None:
    """Nothing at first; what a batch took too much is waited for."""
    share = Share(0.01, 100.0)
    assert not share.has_some(100.0)
    assert share.has_some(101.0)
    share.pay(0.03)
    assert not share.has_some(102.9)
    assert share.has_some(103.1)


def test_what_is_saved_up_is_bounded() -> None:
    """An hour of quiet is no licence for a burst."""
    share = Share(0.01, 0.0)
    assert share.has_some(3_600.0)
    assert share.credit_s == pytest.approx(shadow_credit_s_max)


@given(st.lists(st.tuples(st.floats(0.0, 0.1), st.floats(0.0001, 0.05)), min_size=1, max_size=200))
@settings(deadline=None)
def test_over_any_time_no_more_than_the_share_and_one_batch(
    steps: list[tuple[float, float]],
) -> None:
    """Time used ≤ share · time passed + what may be saved + the last batch."""
    rate, now_s, used_s, longest_s = 0.1, 0.0, 0.0, 0.0
    share = Share(rate, now_s)
    for wait_s, took_s in steps:
        now_s += wait_s
        if share.has_some(now_s):
            now_s += took_s
            share.pay(took_s)
            used_s += took_s
            longest_s = max(longest_s, took_s)
    assert used_s <= rate * now_s + shadow_credit_s_max + longest_s + 1e-9
