"""The clocks."""

import pytest

from shared.clock import SYSTEM, ManualClock


def test_system_time_is_monotonic_and_both_units_agree() -> None:
    """Microseconds and seconds are readings of the same clock, and never go back."""
    before, between_us, after = SYSTEM.monotonic(), SYSTEM.monotonic_us(), SYSTEM.monotonic()
    assert before - 1e-6 <= between_us / 1e6 <= after
    wall_before, wall_us = SYSTEM.wall(), SYSTEM.wall_us()
    assert wall_us / 1e6 >= wall_before - 1e-3


def test_a_manual_clock_moves_only_when_told() -> None:
    """Intervals are exact, and wall time moves along."""
    clock = ManualClock(monotonic_s=5.0, wall_s=100.0)
    assert (clock.monotonic(), clock.monotonic_us(), clock.wall()) == (5.0, 5_000_000, 100.0)
    clock.advance(0.25)
    assert (clock.monotonic(), clock.wall_us()) == (5.25, 100_250_000)


def test_a_step_of_wall_time_leaves_intervals_alone() -> None:
    """A corrected machine time changes records, never intervals."""
    clock = ManualClock(monotonic_s=5.0, wall_s=100.0)
    clock.step_wall(-60)
    assert (clock.monotonic(), clock.wall()) == (5.0, 40.0)


def test_time_cannot_be_advanced_backwards() -> None:
    """A test that tries has a mistake."""
    with pytest.raises(AssertionError):
        ManualClock().advance(-1)
