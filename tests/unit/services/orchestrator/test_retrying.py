"""The retry budget, with a manual clock."""

from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.config import retry_memory_s, retry_parts_min
from services.orchestrator.retrying import RetryBudget
from shared.clock import ManualClock


def test_one_death_in_a_quiet_mesh_is_within_the_budget() -> None:
    """Two full batches are lost: all of their parts may be sent again."""
    budget = RetryBudget()
    budget.sent(64, 0.0)
    assert all(budget.take(0.0) for _ in range(64))


def test_a_quiet_mesh_has_ten_retries_a_second_and_no_more() -> None:
    """At the limit and one above; it fills again with time."""
    budget = RetryBudget()
    assert all(budget.take(0.0) for _ in range(retry_parts_min))
    assert not budget.take(0.0)
    assert budget.refused == 1
    assert sum(budget.take(retry_memory_s / 50) for _ in range(5)) >= 1


@given(st.integers(600, 5_000), st.floats(0.0, 1.0))
def test_attempts_per_request_stay_within_1_2_while_a_runtime_fails(
    rate: int, failing: float
) -> None:
    """Any share of the parts fails, at any rate of some hundreds a second, for 20 s."""
    budget, clock = RetryBudget(), ManualClock()
    requests = attempts = owed = 0.0
    for _ in range(200):
        clock.advance(0.1)
        count = rate // 10
        requests += count
        attempts += count
        budget.sent(count, clock.monotonic())
        owed = count * failing
        granted = sum(budget.take(clock.monotonic()) for _ in range(int(owed)))
        attempts += granted
        budget.sent(granted, clock.monotonic())
    assert attempts / requests <= 1.2
