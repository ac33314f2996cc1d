"""Restart intensity: when an ended child starts again."""

import pytest

from supervisor.restart import Intensity, Restarts

MIDDLE = 0.5
"""The random share that leaves a delay as it is."""


def test_the_first_exit_starts_again_at_once_then_backs_off() -> None:
    """0, then 0.1 s doubled with each exit of the same period."""
    restarts = Restarts(Intensity())
    delays = [restarts.exited(float(second), MIDDLE) for second in range(5)]
    assert delays == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.8])
    assert not restarts.is_degraded


def test_one_more_than_the_intensity_degrades() -> None:
    """Five exits in 30 s are tolerated, the sixth degrades; the tries after it are slow."""
    restarts = Restarts(Intensity())
    for second in range(5):
        restarts.exited(float(second), MIDDLE)
    assert not restarts.is_degraded
    assert restarts.exited(5.0, MIDDLE) == 20.0
    assert restarts.is_degraded
    assert restarts.exited(30.0, MIDDLE) == 40.0
    assert restarts.exited(80.0, MIDDLE) == 60.0
    assert restarts.exited(150.0, MIDDLE) == 60.0, "bounded"


def test_a_refusal_is_not_tried_again_soon() -> None:
    """The first one degrades: what was given would be refused again; it is looked at slowly."""
    restarts = Restarts(Intensity())
    assert restarts.exited(0.0, MIDDLE, is_refusal=True) == 20.0
    assert restarts.is_degraded
    assert restarts.exited(20.0, MIDDLE, is_refusal=True) == 40.0
    restarts.recovered()
    assert restarts.exited(90.0, MIDDLE) == 0.0


def test_spaced_exits_never_degrade() -> None:
    """An exit counts for `period_s`: one each 7 s keeps within the intensity for ever."""
    restarts = Restarts(Intensity())
    for number in range(100):
        restarts.exited(7.0 * number, MIDDLE)
    assert not restarts.is_degraded
    assert restarts.count == 100


def test_a_stable_child_recovers() -> None:
    """Up for `stable_s`, its past is forgotten: the next exit starts again at once."""
    restarts = Restarts(Intensity(restarts_max=1, stable_s=5.0))
    restarts.exited(0.0, MIDDLE)
    restarts.exited(1.0, MIDDLE)
    assert restarts.is_degraded
    assert not restarts.is_stable(4.9)
    assert restarts.is_stable(5.0)
    restarts.recovered()
    assert restarts.exited(30.0, MIDDLE) == 0.0
    assert not restarts.is_degraded


@pytest.mark.parametrize(("share", "delay_s"), [(0.0, 0.08), (0.5, 0.1), (1.0, 0.12)])
def test_jitter_stays_within_its_share(share: float, delay_s: float) -> None:
    """A delay varies by ± 20 %, so that children do not start together."""
    restarts = Restarts(Intensity())
    restarts.exited(0.0, share)
    assert restarts.exited(0.1, share) == pytest.approx(delay_s)


def test_the_back_off_is_bounded() -> None:
    """However often it ends, a child that is not degraded waits at most 5 s."""
    restarts = Restarts(Intensity(restarts_max=1_000, period_s=1e9))
    assert max(restarts.exited(float(n), MIDDLE) for n in range(200)) == 5.0
