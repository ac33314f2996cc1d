"""How long before a runtime is done its next batch is sent."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.config import (
    lead_late_share,
    lead_s_first,
    lead_s_max,
    lead_s_min,
    lead_step_s,
)
from services.orchestrator.lead import Lead


def late_batches(lead: Lead, delay_s: float, spread_s: float, batches: int) -> int:
    """How many come late when each is so long on its way, give or take an exponential time."""
    random, late = Random(1), 0
    for _ in range(batches):
        spare_s = lead.seconds - delay_s - random.expovariate(1.0 / spread_s)
        late += spare_s <= 0.0
        lead.met(max(0.0, spare_s))
    return late


def test_one_batch_in_fifty_comes_late_whatever_the_machine_is_like() -> None:
    """On a fast machine and on a slow one the share settles at what is asked for, and the lead is
    about the quantile of the delays."""
    for delay_s, spread_s in ((0.0005, 0.0002), (0.004, 0.002)):
        lead = Lead()
        late_batches(lead, delay_s, spread_s, 2_000)
        share = late_batches(lead, delay_s, spread_s, 5_000) / 5_000
        assert lead_late_share / 2 < share < lead_late_share * 2
        assert delay_s < lead.seconds < delay_s + 6 * spread_s + lead_step_s


def test_ten_late_batches_in_a_row_lengthen_the_lead_by_nearly_ten_milliseconds() -> None:
    """An orchestrator that suddenly gets less of the processor stops pausing its runtimes after
    one batch or two: then it sends each as soon as there is a credit."""
    lead = Lead()
    for _ in range(10):
        lead.met(0.0)
    assert 0.009 < lead.seconds - lead_s_first < 0.010


@given(st.lists(st.floats(0.0, 10.0), max_size=300))
def test_the_lead_stays_within_its_limits(waits_s: list[float]) -> None:
    """Whatever the runtimes say."""
    lead = Lead()
    for wait_s in waits_s:
        lead.met(wait_s)
        assert lead_s_min <= lead.seconds <= lead_s_max
