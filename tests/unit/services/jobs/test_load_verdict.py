"""What a stretch of load says about the promise, the server and the generator."""

from array import array
from typing import Any

import pytest

from services.jobs.load_verdict import (
    CLOSE_ENOUGH,
    Promise,
    SaturationSearch,
    figures,
    is_generator_limited,
    judge,
)
from services.jobs.offered_load import Measured

PROMISE = Promise(p99_ms=100.0, availability=0.999)


def stretch(
    latency_s: float = 0.01, *, failed: int = 0, lag_s: float = 0.0, cpu: float = 0.1
) -> dict[str, Any]:
    """The figures of 1,000 requests, all with one latency and one lag."""
    measured = Measured(100.0, 10.0, sent=1_000, generator_cpu_share=cpu)
    measured.failures = {"OVERLOADED": failed} if failed else {}
    measured.latencies_s = array("d", [latency_s] * (1_000 - failed))
    measured.lags_s = array("d", [lag_s] * 1_000)
    return figures(measured)


def test_a_kept_promise_is_met() -> None:
    """p99 and availability inside the contract."""
    assert judge(stretch(), PROMISE)[0] == "met"


def test_a_slow_answer_misses_and_says_by_how_much() -> None:
    """The words name what was measured and what was promised."""
    outcome, why = judge(stretch(0.2), PROMISE)
    assert (outcome, why) == ("missed", "p99 200 ms > 100 ms")


def test_failed_requests_miss_the_availability() -> None:
    """Two of a thousand are one too many."""
    outcome, why = judge(stretch(failed=2), PROMISE)
    assert outcome == "missed"
    assert "availability 0.998 < 0.999" in why


def test_the_first_error_is_told_in_its_own_words() -> None:
    """Not a later one's; a failure that no service named has its name alone."""
    measured = Measured(100.0, 10.0, sent=3)
    assert figures(measured)["first_error"] == ""
    measured.fail("INVALID_REQUEST", "x FP32 [-1, 2] is expected")
    measured.fail("OVERLOADED", "later")
    assert figures(measured)["first_error"] == "INVALID_REQUEST: x FP32 [-1, 2] is expected"
    lost = Measured(100.0, 10.0, sent=1)
    lost.fail("CONNECTION_LOST")
    assert figures(lost)["first_error"] == "CONNECTION_LOST"


def test_a_late_generator_is_named_instead_of_the_server() -> None:
    """When requests left late, the latency since they were due is the generator's."""
    row = stretch(0.2, lag_s=0.15)
    assert is_generator_limited(row)
    outcome, why = judge(row, PROMISE)
    assert outcome == "generator"
    assert "150 ms late" in why


def test_a_generator_that_uses_up_its_core_is_named() -> None:
    """Beyond 90 % of a core its own queue is measured."""
    assert judge(stretch(0.2, cpu=0.97), PROMISE)[0] == "generator"


def test_a_promise_kept_in_spite_of_the_generator_is_kept() -> None:
    """A late generator only makes latencies longer."""
    assert judge(stretch(0.05, lag_s=0.04), PROMISE)[0] == "met"


def test_no_answer_at_all_misses() -> None:
    """A quantile of nothing is no kept promise."""
    assert judge(stretch(failed=1_000), PROMISE)[0] == "missed"


@pytest.mark.parametrize("capacity_per_s", [3.0, 90.0, 1_234.0, 25_000.0])
def test_the_search_finds_the_capacity(capacity_per_s: float) -> None:
    """Between the highest rate sustained and the lowest not sustained, close enough."""
    search, steps = SaturationSearch(), 0
    while search.rate is not None:
        search.learn("met" if search.rate <= capacity_per_s else "missed")
        steps += 1
    assert search.failed_per_s is not None
    assert search.sustained_per_s <= capacity_per_s < search.failed_per_s
    assert search.failed_per_s / search.sustained_per_s <= CLOSE_ENOUGH
    assert steps <= 20


def test_a_server_that_sustains_nothing_ends_the_search() -> None:
    """Rates below one a second are not tried."""
    search = SaturationSearch()
    while search.rate is not None:
        search.learn("missed")
    assert search.sustained_per_s == 0.0


def test_the_search_remembers_that_the_generator_was_the_limit() -> None:
    """Then the saturation found is the generator's."""
    search = SaturationSearch()
    search.learn("met")
    search.learn("generator")
    assert search.is_generator_limit
