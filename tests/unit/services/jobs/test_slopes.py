"""Theil–Sen's slope and its interval."""

import random

import pytest

from services.jobs.slopes import POINTS_MAX, POINTS_MIN, theil_sen

TIMES = [float(minute) for minute in range(40)]


def test_a_straight_line_has_its_slope_and_no_doubt() -> None:
    """Without noise the interval is the slope itself."""
    found = theil_sen(TIMES, [3.0 + 0.5 * minute for minute in TIMES])
    assert found.value == pytest.approx(0.5)
    assert (found.low, found.high) == (pytest.approx(0.5), pytest.approx(0.5))


def test_one_burst_moves_the_slope_hardly() -> None:
    """A point far away, as a collection of garbage makes it, is outvoted."""
    values = [100.0 + 0.1 * minute for minute in TIMES]
    values[30] = 10_000.0
    assert theil_sen(TIMES, values).value == pytest.approx(0.1, abs=0.02)


def test_the_interval_holds_the_true_slope_as_often_as_it_says() -> None:
    """Of 200 noisy lines with slope 0.2, some 95 % have it in their interval."""
    chance, held = random.Random(1), 0
    for _ in range(200):
        found = theil_sen(TIMES, [0.2 * minute + chance.gauss(0, 3) for minute in TIMES])
        held += found.low <= 0.2 <= found.high
    assert 180 <= held <= 199


def test_noise_alone_is_not_taken_for_growth() -> None:
    """A flat noisy series has 0 inside its interval."""
    chance = random.Random(2)
    found = theil_sen(TIMES, [50 + chance.uniform(-1, 1) for _ in TIMES])
    assert found.low < 0 < found.high


def test_many_points_are_thinned() -> None:
    """A day of samples costs no more than POINTS_MAX of them."""
    times = [float(second) for second in range(POINTS_MAX * 5)]
    assert theil_sen(times, times).value == pytest.approx(1.0)


def test_too_few_points_are_refused() -> None:
    """One fewer than the minimum names both numbers."""
    with pytest.raises(ValueError, match=f"{POINTS_MIN - 1} points, at least {POINTS_MIN}"):
        theil_sen(TIMES[: POINTS_MIN - 1], TIMES[: POINTS_MIN - 1])
