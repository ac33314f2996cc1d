"""How requests end and are counted."""

import pytest

from contracts.errors import ERRORS
from contracts.methods import METHODS
from services.orchestrator.request import Outcome, Tally, outcome_of
from tests.unit.services.orchestrator.making import part_for, plan_for


def test_a_request_ends_exactly_once() -> None:
    """The second end is a programmer's error."""
    work = part_for(plan_for()).work
    work.end(Outcome.FAILED)
    with pytest.raises(AssertionError, match="twice"):
        work.end(Outcome.ANSWERED)


def test_an_ended_request_lets_go_of_everything() -> None:
    """No cycle and no tensor outlives it."""
    work = part_for(plan_for()).work
    work.call.on_cancel = lambda: None
    work.end(Outcome.ANSWERED)
    assert work.parts == ()
    assert work.call.on_cancel is None


def test_every_error_of_infer_has_one_outcome() -> None:
    """What the caller is told decides what is counted."""
    outcomes = {name: outcome_of(name) for name in METHODS["orchestrator"]["infer"].all_errors}
    assert outcomes["CANCELLED"] is Outcome.CANCELLED
    assert outcomes["DEADLINE_EXCEEDED"] is Outcome.FAILED
    assert outcomes["OVERLOADED"] is Outcome.REFUSED
    assert outcomes["FEATURE_INVALID"] is Outcome.REFUSED
    assert set(outcomes) <= set(ERRORS)


def test_the_tally_counts_each_outcome_apart() -> None:
    """None is counted under another's name."""
    tally = Tally()
    for outcome in Outcome:
        tally.count(outcome)
    assert (tally.answered, tally.refused, tally.failed, tally.cancelled) == (1, 1, 1, 1)
