"""Which rows are bad: found within the bound, whatever the set, and never a good one blamed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import MeshError
from services.model_runtime.backends.base import Array
from services.model_runtime.config import isolated_rows_max
from services.model_runtime.isolation import forwards_max, forwards_per_row_max, isolate

FAILED = MeshError("FORWARD_FAILED", "ValueError")


class Rows:
    """Forwards over rows of which some are bad, and of which `fits` at most fit into memory."""

    def __init__(self, count: int, bad: set[int], fits: int = 1_000) -> None:
        self.count, self.bad, self.fits = count, bad, fits
        self.computed: list[int] = []
        self.forwards: list[list[int]] = []

    def attempt(self, rows: Array) -> MeshError | None:
        """One forward."""
        self.forwards.append(rows.tolist())
        if len(rows) > self.fits:
            return MeshError("MEMORY_EXHAUSTED", f"{len(rows)} rows")
        if self.bad & set(rows.tolist()):
            return MeshError("FORWARD_FAILED", f"{len(rows)} rows")
        self.computed += rows.tolist()
        return None

    def isolate(self, budget: int, alone: int = 0) -> set[int]:
        """The rows that failed; asserts that every row is once computed or failed."""
        everything = np.arange(self.count)
        error = self.attempt(everything)
        assert error is not None
        self.forwards.clear()
        found = isolate(everything, error, self.attempt, budget, alone)
        assert sorted(self.computed + list(found.failed)) == everything.tolist()
        assert found.forwards == len(self.forwards) <= budget + alone
        return set(found.failed)


@given(st.integers(2, 300), st.data())
@settings(max_examples=200)
def test_exactly_the_bad_rows_fail_within_the_bound(count: int, data: st.DataObject) -> None:
    """Up to `isolated_rows_max` of them: each costs log2 n + 1 forwards at most, none is computed,
    and every good one is."""
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=isolated_rows_max))
    rows = Rows(count, bad)
    assert rows.isolate(forwards_max(count)) == bad
    assert len(rows.forwards) <= len(bad) * forwards_per_row_max(count)


@given(st.integers(2, 300), st.data())
def test_more_bad_rows_than_are_looked_for_end_within_the_bound(
    count: int, data: st.DataObject
) -> None:
    """No bad one is computed; what is undecided fails as a whole, unless it is tried alone."""
    bad = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=count))
    alone = data.draw(st.integers(0, 64))
    failed = Rows(count, bad).isolate(forwards_max(count), alone)
    assert failed >= bad
    if alone + isolated_rows_max >= count:
        assert failed == bad


@pytest.mark.parametrize(("fits", "forwards"), [(16, 2), (8, 6), (4, 14)])
def test_a_batch_that_does_not_fit_is_computed_in_pieces_that_do(fits: int, forwards: int) -> None:
    """No row is at fault, so none fails: nothing is concluded from another half's success."""
    rows = Rows(32, set(), fits)
    assert rows.isolate(forwards_max(32)) == set()
    assert len(rows.forwards) == forwards


def test_a_bad_row_in_a_batch_that_does_not_fit_fails_alone() -> None:
    """Both reasons in one batch."""
    assert Rows(16, {5}, 8).isolate(forwards_max(16)) == {5}


def test_a_forward_that_failed_once_by_chance_costs_no_row() -> None:
    """The second try of everything works: the suspect is tried alone before it is blamed."""
    rows = Rows(8, set())
    found = isolate(np.arange(8), FAILED, rows.attempt, forwards_max(8))
    assert found.failed == {}
    assert rows.forwards == [[0, 1, 2, 3], [4, 5], [6], [7]]


def test_no_forward_runs_when_the_first_reason_is_that_nobody_waits() -> None:
    """An attempt that ran nothing is not counted; everything undecided has its reason."""
    gone = MeshError("CANCELLED", "everybody left")
    found = isolate(np.arange(4), FAILED, lambda rows: gone, forwards_max(4))
    assert found.forwards == 0
    assert found.failed == dict.fromkeys(range(4), gone)


@pytest.mark.parametrize(("rows", "forwards"), [(1, 1), (2, 2), (3, 3), (4, 3), (32, 6), (33, 7)])
def test_the_bound_is_log2_n_plus_1(rows: int, forwards: int) -> None:
    """Rounded up."""
    assert forwards_per_row_max(rows) == forwards
    assert forwards_max(rows) == isolated_rows_max * forwards
