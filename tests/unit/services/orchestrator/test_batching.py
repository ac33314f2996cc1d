"""When batches leave and how long requests are divided."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.policies import BatchingPolicy, BatchingSpec
from services.orchestrator.batching import (
    IDLE,
    Window,
    cut,
    drop_rows,
    leaves_at,
    spans_of,
    windows_of,
)
from tests.unit.services.orchestrator.making import policy_set

WINDOW = Window(wait_s=0.010, rows_max=32)


def test_an_idle_runtime_is_fed_at_once() -> None:
    """One row leaves now when nothing is computed."""
    assert leaves_at(1, 5.0, WINDOW, IDLE) == IDLE


def test_behind_a_busy_runtime_rows_gather_until_full_or_the_window_ends() -> None:
    """31 rows wait 10 ms from the first arrival, 32 do not wait."""
    assert leaves_at(31, 5.0, WINDOW, 0.0) == 5.010
    assert leaves_at(32, 5.0, WINDOW, 0.0) == 0.0


def test_a_batch_is_bound_no_sooner_than_the_runtime_needs_it() -> None:
    """Neither full rows nor the window's end send a batch to a runtime that is busy until later."""
    assert leaves_at(32, 5.0, WINDOW, 5.008) == 5.008
    assert leaves_at(31, 5.0, WINDOW, 5.008) == 5.010
    assert leaves_at(31, 5.0, WINDOW, 5.012) == 5.012


@given(st.integers(1, 5_000), st.integers(0, 3_000_000), st.integers(1, 64), st.integers(1, 10**7))
def test_parts_cover_a_request_exactly_and_stay_within_the_window(
    rows: int, row_bytes: int, rows_max: int, bytes_max: int
) -> None:
    """Spans are contiguous from 0 to the end; each fits, or is a single row that is too long."""
    divided = spans_of(rows, row_bytes, Window(0.01, rows_max, bytes_max))
    at = 0
    for start, count in divided:
        assert start == at
        assert 1 <= count <= rows_max
        assert count == 1 or count * row_bytes <= bytes_max
        at += count
    assert at == rows


@given(st.integers(1, 200), st.integers(1, 16), st.integers(1, 40))
def test_cut_parts_joined_are_the_request(rows: int, row_bytes: int, rows_max: int) -> None:
    """Split and reassembly lose, double and reorder nothing."""
    data = bytes(index % 251 for index in range(rows * row_bytes))
    pieces = [
        cut(data, start, count, row_bytes)
        for start, count in spans_of(rows, row_bytes, Window(0.01, rows_max))
    ]
    assert b"".join(pieces) == data


def test_dropped_rows_are_left_out() -> None:
    """Row 1 of three is gone."""
    assert drop_rows(b"aabbcc", 2, {1}) == b"aacc"


def test_a_policy_sets_the_window_of_its_model_alone() -> None:
    """The others keep the built-in default."""
    policy = BatchingPolicy(name="tiny", spec=BatchingSpec(wait_ms=2.5, rows_max=8))
    window_of = windows_of(policy_set(policy))
    assert window_of("tiny") == Window(0.0025, 8)
    assert window_of("other") == Window(0.010, 32)
