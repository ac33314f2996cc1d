"""The cost model of a version, fitted from its batches."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.config import cost_batches_min
from services.orchestrator.cost import CostModel

BATCH_S, ROW_S = 5e-3, 0.2e-3


def fitted(*rows: int, batch_s: float = BATCH_S, row_s: float = ROW_S) -> CostModel:
    """A model that saw batches of exactly this cost."""
    model = CostModel()
    for count in rows:
        model.add(count, batch_s + row_s * count, 0.0)
    return model


def near(value: float, expected: float, share: float = 0.02) -> bool:
    """Within a share of what is expected."""
    return abs(value - expected) <= share * expected


def test_offset_and_slope_are_found() -> None:
    """5 ms a batch and 0.2 ms a row, from batches of different sizes."""
    model = fitted(*(1 + 7 * number % 32 for number in range(100)))
    assert near(model.batch_s, BATCH_S)
    assert near(model.row_s, ROW_S)


def test_nothing_is_known_before_enough_batches() -> None:
    """One cold forward decides nothing."""
    assert not fitted(*range(1, cost_batches_min)).is_known
    assert fitted(*range(1, cost_batches_min + 1)).is_known


def test_constant_rows_are_predicted_by_their_mean() -> None:
    """With 32 rows each time there is no slope to see, and the prediction there is exact."""
    assert near(fitted(*[32] * 500).predict_s(32), BATCH_S + 32 * ROW_S)


def test_a_slope_that_was_seen_survives_constant_rows() -> None:
    """A thousand full batches do not unlearn what the small ones taught."""
    model = fitted(*range(1, 33))
    for _ in range(1_000):
        model.add(32, BATCH_S + 32 * ROW_S, 0.0)
    assert near(model.row_s, ROW_S, 0.2)
    assert near(model.predict_s(32), BATCH_S + 32 * ROW_S)


def test_a_pause_of_the_machine_hardly_moves_the_fit() -> None:
    """One batch of a second among those of 11 ms."""
    model = fitted(*(1 + 7 * number % 32 for number in range(100)))
    model.add(32, 1.0, 0.0)
    assert near(model.predict_s(32), BATCH_S + 32 * ROW_S, 0.15)


def test_a_lasting_change_is_followed() -> None:
    """A model that becomes four times slower is known to be within 200 batches."""
    rng = random.Random(1)
    model = fitted(*(rng.randrange(1, 33) for _ in range(200)))
    for _ in range(200):
        rows = rng.randrange(1, 33)
        model.add(rows, 4 * (BATCH_S + ROW_S * rows), 0.0)
    assert near(model.predict_s(32), 4 * (BATCH_S + 32 * ROW_S), 0.1)


def test_larger_batches_that_took_less_give_no_negative_slope() -> None:
    """Noise may slope downwards; the cost of a row is then nothing, never less."""
    model = CostModel()
    for number in range(100):
        rows = 1 + number % 32
        model.add(rows, 20e-3 - 0.3e-3 * rows, 0.0)
    assert model.row_s == 0.0
    assert model.predict_s(4_096) > 0.0


@given(
    st.lists(
        st.tuples(st.integers(1, 1_024), st.floats(0.0, 10.0), st.floats(0.0, 1.0)),
        min_size=1,
        max_size=300,
    )
)
def test_whatever_comes_coefficients_are_finite_and_not_negative(
    batches: list[tuple[int, float, float]],
) -> None:
    """Any rows and times, in any order."""
    model = CostModel()
    for rows, forward_s, overhead_s in batches:
        model.add(rows, forward_s, overhead_s)
        for value in (model.batch_s, model.row_s, model.overhead_s, model.spread_s):
            assert math.isfinite(value)
            assert value >= 0.0
    assert model.predict_s(4_096) <= 10.0 * 4_096 * 1.5


@given(st.floats(1e-6, 0.1), st.floats(0.0, 1e-3), st.integers(0, 2**32 - 1))
def test_any_cost_is_found_through_noise(batch_s: float, row_s: float, seed: int) -> None:
    """± 2 % of noise: a batch of 16 rows is predicted within 5 %."""
    rng = random.Random(seed)
    model = CostModel()
    for _ in range(300):
        rows = rng.randrange(1, 33)
        took_s = (batch_s + row_s * rows) * rng.uniform(0.98, 1.02)
        model.add(rows, took_s, 0.0)
    assert near(model.predict_s(16), batch_s + 16 * row_s, 0.05)
