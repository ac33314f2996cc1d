"""Who is stuck, and when nobody may be judged."""

import math
from dataclasses import replace

import pytest

from supervisor.liveness import Patience, Signs, Suspension, judge

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
