"""Who is stuck, and when nobody may be judged."""

import math
from dataclasses import replace

import pytest

from supervisor.liveness import Patience, Signs, Starvation, Suspension, judge

PATIENCE = Patience()
NOW_S = 1_000.0
WELL = Signs(
    pid=7,
    is_ready=True,
    is_accepting=True,
    started_s=0.0,
    beat_s=NOW_S,
    answered_s=NOW_S,
)


@pytest.mark.parametrize(
    ("signs", "reason"),
    [
        (WELL, None),
        (replace(WELL, beat_s=NOW_S - 5.0), None),
        (replace(WELL, beat_s=NOW_S - 5.1), "no heartbeat for 5.1 s"),
        (replace(WELL, stopped_from_s=NOW_S - 2.1), "stopped for 2.1 s"),
        (replace(WELL, stopped_from_s=NOW_S - 2.1, is_ready=False), "stopped for 2.1 s"),
        (replace(WELL, stopped_from_s=NOW_S - 1.9), None),
        (replace(WELL, beat_s=math.inf, answered_s=math.inf), None),
        (replace(WELL, answered_s=NOW_S - 15.1), "no answer to a probe for 15.1 s"),
        (replace(WELL, answered_s=NOW_S - 15.1, is_accepting=False), None),
        (replace(WELL, is_ready=False, started_s=NOW_S - 120.0, beat_s=0.0), None),
        (replace(WELL, is_ready=False, started_s=NOW_S - 120.1), "not ready 120.1 s after"),
        (replace(WELL, is_ready=False, pid=0, started_s=NOW_S - 10.1), "not forked 10.1 s after"),
    ],
)
def test_each_sign_has_its_limit(signs: Signs, reason: str | None) -> None:
    """At a limit a child lives, beyond it the reason is named."""
    found = judge(signs, NOW_S, PATIENCE, grace_from_s=0.0)
    assert found is None if reason is None else reason in str(found)


@pytest.mark.parametrize(
    ("signs", "reason"),
    [
        (replace(WELL, beat_s=NOW_S - 25.0, starved_s=20.0), None),
        (replace(WELL, beat_s=NOW_S - 25.1, starved_s=20.0), "25.1 s, 20.0 s of it without a CPU"),
        (replace(WELL, beat_s=NOW_S - 66.0, starved_s=66.0), "no heartbeat for 66.0 s, 60.0 s"),
        (replace(WELL, answered_s=NOW_S - 45.0, unanswered_starved_s=30.0), None),
        (replace(WELL, answered_s=NOW_S - 45.1, unanswered_starved_s=30.0), "probe for 45.1 s"),
    ],
)
def test_waiting_for_a_cpu_is_no_silence_up_to_a_limit(signs: Signs, reason: str | None) -> None:
    """What a child waited for a CPU is taken off its silence, but at most `starved_s_max`."""
    found = judge(signs, NOW_S, PATIENCE, grace_from_s=0.0)
    assert found is None if reason is None else reason in str(found)


def test_only_who_wants_a_cpu_and_has_none_starves() -> None:
    """Sleeping and spinning are the child's own; waiting in the run queue is not. A sign of life
    begins its count anew, each sign its own."""
    starvation = Starvation()
    starvation.look(10.0, cpu_s=1.0, is_runnable=True)
    assert starvation.since(9.0, 9.0) == (0.0, 0.0)
    starvation.look(11.0, cpu_s=2.0, is_runnable=True)  # it ran all the time
    starvation.look(12.0, cpu_s=2.0, is_runnable=False)  # it slept
    assert starvation.since(9.0, 9.0) == (0.0, 0.0)
    starvation.look(13.0, cpu_s=2.25, is_runnable=True)  # a quarter of the time
    assert starvation.since(9.0, 9.0) == (0.75, 0.75)
    assert starvation.since(12.9, 9.0) == (0.0, 0.75)
    starvation.look(14.0, cpu_s=2.25, is_runnable=True)
    assert starvation.since(12.9, 9.0) == (1.0, 1.75)


def test_a_second_thread_that_runs_is_no_negative_starvation() -> None:
    """Two threads use more CPU than time passes; nothing is taken back."""
    starvation = Starvation()
    starvation.look(1.0, cpu_s=0.0, is_runnable=True)
    starvation.look(2.0, cpu_s=2.0, is_runnable=True)
    assert starvation.total_s == 0.0


def test_grace_comes_before_judgement() -> None:
    """After lost time silence counts from the grace's end, not from the last heartbeat."""
    silent = replace(WELL, beat_s=0.0, answered_s=0.0)
    assert judge(silent, NOW_S, PATIENCE, grace_from_s=NOW_S + 5.0) is None
    assert judge(silent, NOW_S, PATIENCE, grace_from_s=NOW_S - 6.0) is not None


def test_ordinary_ticks_lose_no_time() -> None:
    """Ticks at their pace, a little late or not, grant nothing."""
    suspension = Suspension(PATIENCE)
    assert not suspension.tick(100.0, 5_100.0)
    assert not suspension.tick(100.5, 5_100.5)
    assert not suspension.tick(101.9, 5_101.9)
    assert suspension.grace_from_s == 0.0


def test_a_late_tick_of_our_own_grants_grace() -> None:
    """The supervisor itself stood still: everybody gets `grace_s` from now."""
    suspension = Suspension(PATIENCE)
    suspension.tick(100.0, 100.0)
    assert suspension.tick(110.0, 110.0)
    assert suspension.grace_from_s == 110.0 + PATIENCE.grace_s
    assert not suspension.tick(110.5, 110.5)


def test_a_slept_machine_grants_grace() -> None:
    """The boot clock went on while the monotonic one stood: the machine was asleep."""
    suspension = Suspension(PATIENCE)
    suspension.tick(100.0, 100.0)
    assert suspension.tick(100.5, 3_700.5)
    assert not suspension.tick(101.0, 3_701.0)
