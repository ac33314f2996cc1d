"""The cost of a version whose batches have tokens: a + b · rows + c · tokens, fitted online."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.cost import CostModel

BATCH_S, ROW_S, TOKEN_S = 2e-3, 0.1e-3, 5e-6
Sizes = Callable[[random.Random], tuple[int, int]]
"""Rows of a batch, and the length of its longest."""


def truth(rows: int, tokens: int) -> float:
    """Seconds of a batch."""
    return BATCH_S + ROW_S * rows + TOKEN_S * tokens


def fitted(sizes: Sizes, noise: float = 0.0, model: CostModel | None = None) -> CostModel:
    """After 300 batches."""
    model, rng = model or CostModel(), random.Random(1)
    for _ in range(300):
        rows, longest = sizes(rng)
        took_s = truth(rows, rows * longest) * rng.uniform(1 - noise, 1 + noise)
        model.add(rows, took_s, 0.0, rows * longest)
    return model


def mixed(rng: random.Random) -> tuple[int, int]:
    """Rows and lengths that have nothing to do with each other."""
    return rng.randrange(1, 33), rng.randrange(5, 250)


def test_offset_and_both_slopes_are_found() -> None:
    """From batches of different rows and lengths."""
    model = fitted(mixed)
    assert model.batch_s == pytest.approx(BATCH_S, rel=0.01)
    assert model.row_s == pytest.approx(ROW_S, rel=0.01)
    assert model.token_s == pytest.approx(TOKEN_S, rel=0.01)


@pytest.mark.parametrize(
    "sizes",
    [
        lambda rng: (rng.randrange(1, 33), 100),
        lambda rng: (32, 100),
        lambda rng: (1, rng.randrange(5, 500)),
        lambda rng: (32, rng.randrange(5, 256)),
    ],
    ids=["one length", "one size", "one row", "full"],
)
def test_what_was_seen_is_predicted_where_slopes_cannot_be_told_apart(sizes: Sizes) -> None:
    """Rows that all have one length, or batches that all have the same rows: ± 5 % of noise, and
    batches like those are predicted within 3 %."""
    model, rng = fitted(sizes, noise=0.05), random.Random(2)
    for _ in range(20):
        rows, longest = sizes(rng)
        tokens = rows * longest
        assert model.predict_s(rows, tokens) == pytest.approx(truth(rows, tokens), rel=0.03)


def test_slopes_that_were_seen_survive_batches_of_one_size() -> None:
    """Three hundred full batches do not unlearn what the mixed ones taught."""
    model = fitted(lambda _: (32, 100), model=fitted(mixed))
    assert model.predict_s(1, 2_000) == pytest.approx(truth(1, 2_000), rel=0.1)


def test_a_version_without_tokens_is_fitted_as_before() -> None:
    """The same coefficients, bit for bit, as if tokens had never been thought of."""
    model = CostModel()
    for rows in range(1, 60):
        model.add(rows, truth(rows, 0), 0.0)
    assert model.token_s == 0.0
    assert model.predict_s(8) == model.batch_s + 8 * model.row_s


@given(
    st.lists(
        st.tuples(
            st.integers(1, 1_024), st.integers(1, 65_536), st.floats(0.0, 10.0), st.booleans()
        ),
        min_size=1,
        max_size=200,
    )
)
def test_whatever_comes_coefficients_are_finite_and_not_negative(
    batches: list[tuple[int, int, float, bool]],
) -> None:
    """Any rows, tokens and times, half of them collinear."""
    model = CostModel()
    for rows, longest, forward_s, is_collinear in batches:
        model.add(rows, forward_s, 0.0, rows * (7 if is_collinear else longest))
        for value in (model.batch_s, model.row_s, model.token_s, model.spread_s):
            assert math.isfinite(value)
            assert value >= 0.0
    assert model.predict_s(1_024, 1_024 * 65_536) < 1e12


@given(
    st.floats(1e-5, 0.05), st.floats(0.0, 1e-3), st.floats(1e-7, 1e-4), st.integers(0, 2**32 - 1)
)
def test_any_cost_is_found_through_noise(
    batch_s: float, row_s: float, token_s: float, seed: int
) -> None:
    """± 2 % of noise: a batch of 16 rows of 100 tokens is predicted within 6 %."""
    rng = random.Random(seed)
    model = CostModel()
    for _ in range(300):
        rows, longest = mixed(rng)
        took_s = (batch_s + row_s * rows + token_s * rows * longest) * rng.uniform(0.98, 1.02)
        model.add(rows, took_s, 0.0, rows * longest)
    expected = batch_s + row_s * 16 + token_s * 1_600
    assert model.predict_s(16, 1_600) == pytest.approx(expected, rel=0.06)
