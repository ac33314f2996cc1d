"""Scores against their definitions."""

import numpy as np
import pytest

from services.jobs.scores import area_under_curve, historic_rates, measure, prior_rows


def test_auc_equals_the_share_of_ordered_pairs() -> None:
    """Ties count half."""
    random = np.random.default_rng(2)
    is_positive = random.random(200) < 0.3
    scores = random.integers(8, size=200) / 8.0
    pairs = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for high in scores[is_positive]
        for low in scores[~is_positive]
    ]
    assert area_under_curve(is_positive, scores) == pytest.approx(sum(pairs) / len(pairs))


def test_measure_gives_log_loss_and_brier_score() -> None:
    """One sure and right, one half and half."""
    scores = measure(np.array([True, False]), np.array([1.0, 0.5]))
    assert scores == {"auc": 1.0, "log_loss": round(np.log(2) / 2, 6), "brier": 0.125}


def test_historic_rates_know_the_training_rows_alone() -> None:
    """A group's rate is pulled towards the overall one; an unseen group has the overall one."""
    origin = np.array(["A", "A", "B", "A", "C"])
    hour = np.array([1, 1, 1, 1, 1])
    late = np.array([True, True, False, False, True])
    train = np.array([True, True, True, False, False])
    rates = historic_rates([origin, hour], late, train)
    overall = 2 / 3
    expected = (2 + prior_rows * overall) / (2 + prior_rows)
    assert rates[3] == pytest.approx(expected)
    assert rates[4] == pytest.approx(overall)
