"""Which child is stuck, and when nobody may be judged: pure decisions over seconds.

A child that is alive but does nothing is found by its missing heartbeat or unanswered probes. A
suspended machine, or a supervisor that was itself stopped, makes all of them look stuck: then
everyone gets a fresh grace period first.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Bounds in seconds. A stopped process (state T) is judged sooner than a merely silent one."""

    tick_s: float = 0.5
    start_s_max: float = 120.0
    adopted_s_max: float = 10.0
    beat_s_max: float = 5.0
    stopped_s_max: float = 2.0
    probe_s: float = 1.0
    probe_timeout_s: float = 1.0
    probe_silent_s_max: float = 15.0
    grace_s: float = 5.0
    late_tick_s: float = 1.5

    def __post_init__(self) -> None:
        assert self.late_tick_s > self.tick_s, "an ordinary tick is not late"
        assert self.beat_s_max > 2 * self.tick_s, "a lost beat is not yet a stuck child"
        assert self.probe_silent_s_max > self.probe_s + self.probe_timeout_s, "one probe may fail"


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known of one child, instants in monotonic seconds; `math.inf` for a sign that this
    child does not give. `pid` 0: not adopted yet. `stopped_from_s`: since when it is in state T.
    """

    pid: int
    is_ready: bool
    is_accepting: bool
    started_s: float
    beat_s: float
    answered_s: float
    stopped_from_s: float | None = None


def judge(signs: Signs, now_s: float, patience: Patience, grace_from_s: float) -> str | None:
    """Why this child must be killed, or None. `grace_from_s`: when the last grace began."""
    if signs.stopped_from_s is not None:
        stopped_s = now_s - max(signs.stopped_from_s, grace_from_s)
        if stopped_s > patience.stopped_s_max:
            return f"stopped for {stopped_s:.1f} s"
    if not signs.is_ready:
        waited_s = now_s - max(signs.started_s, grace_from_s)
        limit_s = patience.start_s_max if signs.pid else patience.adopted_s_max
        word = "not ready" if signs.pid else "not forked"
        return f"{word} {waited_s:.1f} s after its start" if waited_s > limit_s else None
    silent_s = now_s - max(signs.beat_s, grace_from_s)
    if silent_s > patience.beat_s_max:
        return f"no heartbeat for {silent_s:.1f} s"
    unanswered_s = now_s - max(signs.answered_s, grace_from_s)
    if signs.is_accepting and unanswered_s > patience.probe_silent_s_max:
        return f"no answer to a probe for {unanswered_s:.1f} s"
    return None


class Suspension:
    """Notices that the machine or this process stood still between two ticks."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._tick_s = 0.0
        self._asleep_s = 0.0
        self.grace_from_s = 0.0

    def tick(self, monotonic_s: float, boottime_s: float) -> bool:
        """True when time was lost since the last tick: `grace_from_s` then begins anew.

        The kernel's boot clock runs on while the machine sleeps, the monotonic one does not.
        """
        asleep_s = boottime_s - monotonic_s
        is_first = self._tick_s == 0.0
        was_late = monotonic_s - self._tick_s > self._patience.late_tick_s
        has_slept = asleep_s - self._asleep_s > self._patience.late_tick_s
        self._tick_s, self._asleep_s = monotonic_s, asleep_s
        if is_first or not (was_late or has_slept):
            return False
        self.grace_from_s = monotonic_s + self._patience.grace_s
        return True
