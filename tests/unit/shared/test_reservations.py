"""Which replicas are reserved for whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.policies import PrioritySpec
from shared.reservations import SHARED, reservations_of, roles


@pytest.mark.parametrize(
    ("count", "reservations", "expected"),
    [
        (3, {}, [0, 0, 0]),
        (3, {1: 1}, [0, 0, 1]),
        (4, {2: 1, 1: 1}, [0, 0, 2, 1]),
        (2, {1: 1, 2: 1}, [0, 1]),
        (1, {1: 1}, [0]),
        (0, {1: 1}, []),
        (2, {3: 5}, [0, 3]),
    ],
)
def test_the_last_ones_are_reserved_the_highest_class_first(
    count: int, reservations: dict[int, int], expected: list[int]
) -> None:
    """At least one stays for everybody."""
    assert roles(count, reservations) == expected


@given(
    count=st.integers(1, 64),
    reservations=st.dictionaries(st.sampled_from([1, 2, 3]), st.integers(1, 64)),
)
def test_every_replica_has_one_role_and_one_is_everybody_s(
    count: int, reservations: dict[int, int]
) -> None:
    """No class gets more than it asked for."""
    found = roles(count, reservations)
    assert len(found) == count
    assert found[0] == SHARED
    assert all(found.count(risk) <= asked for risk, asked in reservations.items())


def test_a_reserve_of_none_is_none() -> None:
    """0 in the policy."""
    assert reservations_of(PrioritySpec(reserved_replicas={"1": 0, "2": 3})) == {2: 3}
