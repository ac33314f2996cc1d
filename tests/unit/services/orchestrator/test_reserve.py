"""Replicas reserved for a risk class."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.policies import PrioritySpec
from services.orchestrator.fairness import RiskClass
from services.orchestrator.replica import Replica
from services.orchestrator.reserve import SHARED, reservations_of, share_out, sharing

pytestmark = pytest.mark.interpreted


def replicas(count: int) -> list[Replica]:
    """Stand-ins that are only counted and compared."""
    return cast("list[Replica]", [object() for _ in range(count)])


def waiting(**rows: int) -> list[RiskClass]:
    """Classes of risk 1, 2, 3 with so many rows: `r1=4`."""
    classes = [RiskClass(risk, 1.0) for risk in (1, 2, 3)]
    for each in classes:
        each.rows = rows.get(f"r{each.risk_level}", 0)
    return classes


def test_the_last_replicas_are_reserved() -> None:
    """One of three for class 1; the others are shared."""
    every = replicas(3)
    given_out = share_out(every, {1: 1})
    assert list(given_out[1]) == every[2:]
    assert list(given_out[SHARED]) == every[:2]


def test_a_policy_that_reserves_none_reserves_none() -> None:
    """A count of 0 is the same as no entry."""
    spec = PrioritySpec(reserved_replicas={"1": 0, "2": 1})
    assert reservations_of(spec) == {2: 1}


@given(
    st.integers(1, 8),
    st.dictionaries(st.integers(1, 3), st.integers(1, 8), max_size=3),
)
def test_one_replica_always_stays_for_everybody(count: int, asked: dict[int, int]) -> None:
    """Whatever is asked for: each replica is in one place, and the shared ones are never none."""
    every = replicas(count)
    given_out = share_out(every, asked)
    placed = [replica for group in given_out.values() for replica in group]
    assert sorted(map(id, placed)) == sorted(map(id, every))
    assert given_out[SHARED]
    for risk, number in asked.items():
        assert len(given_out.get(risk, ())) <= number


@pytest.mark.parametrize(("rows", "shares"), [(1, False), (32, False), (33, True)])
def test_a_class_with_a_reserve_shares_when_more_than_a_batch_waits(
    rows: int, shares: bool
) -> None:
    """32 rows are one batch for its one replica; the 33rd overflows."""
    given_out: Any = share_out(replicas(2), {1: 1})
    risks = [each.risk_level for each in sharing(waiting(r1=rows, r3=1), given_out, 32)]
    assert risks == ([1, 3] if shares else [3])


def test_without_its_replica_a_class_shares_again() -> None:
    """The reserved replica is away: class 1 is served by the one that is left."""
    given_out = share_out(replicas(1), {1: 1})
    assert [each.risk_level for each in sharing(waiting(r1=1), given_out, 32)] == [1]
