"""Every scenario of `make fire` at a small size; what each claims: `benchmarks/under_fire.py`."""

import json

import pytest

from benchmarks.under_fire import SCENARIOS, arguments

SMALL = ["--rate", "100", "--turns", "1", "--seconds", "6", "--clients", "500", "--idle-s", "2"]
BOUNDS = {
    "restarts_max": 2,
    "backoff_s_max": 1.0,
    "slow_s_min": 3.0,
    "slow_s_max": 3.0,
    "stable_s": 4.0,
}
"""Degraded after three kills, and stable later than the next would come."""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in ("crowd", "default")])
def test_under_fire(name: str) -> None:
    """Planned restarts are not noticed; a runtime killed again and again leaves no request open;
    the edge is back within a second; an idle connection's first call succeeds."""
    found = SCENARIOS[name](arguments(SMALL))
    assert found["is_kept"], found


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_clients_that_connect_at_once_are_all_answered() -> None:
    """500 of the SDK's clients, each with a connection of its own and a prediction."""
    found = SCENARIOS["crowd"](arguments(SMALL))
    assert (found["answered"], found["failures"], found["refused_connections"]) == (500, [], 0)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_runtime_that_dies_too_often_is_degraded_and_comes_back_by_itself() -> None:
    """Requests end by their deadlines meanwhile, and are answered again afterwards."""
    words = [*SMALL[:-6], "--seconds", "30", "--bounds", json.dumps(BOUNDS)]
    found = SCENARIOS["default"](arguments(words))
    assert found["degraded"], found
    assert found["answers_again"], found
    assert found["is_kept"], found
