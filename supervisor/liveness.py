"""Which child is stuck, and when nobody may be judged: pure decisions over seconds.

A child that is alive but does nothing is found by its missing heartbeat or unanswered probes. A
suspended machine, or a supervisor that was itself stopped, makes all of them look stuck: then
everyone gets a fresh grace period first. A child that wants a CPU and does not get one is not
stuck either: while it is starved, its patience is counted in the CPU time that it got.
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
    starved_s_max: float = 60.0
    grace_s: float = 5.0
    late_tick_s: float = 1.5

    def __post_init__(self) -> None:
        assert self.late_tick_s > self.tick_s, "an ordinary tick is not late"
        assert self.beat_s_max > 2 * self.tick_s, "a lost beat is not yet a stuck child"
        assert self.probe_silent_s_max > self.probe_s + self.probe_timeout_s, "one probe may fail"
        assert self.starved_s_max >= 30.0, "thirty seconds without a CPU are no reason to kill"


@dataclass(frozen=True, slots=True)
class Signs:
    """What is known of one child, instants in monotonic seconds; `math.inf` for a sign that this
    child does not give. `pid` 0: not adopted yet. `stopped_from_s`: since when it is in state T.
    Of the silence after its last heartbeat it was without a CPU that it wanted for `starved_s`, of
    the one after its last answer for `unanswered_starved_s`.
    """

    pid: int
    is_ready: bool
    is_accepting: bool
    started_s: float
    beat_s: float
    answered_s: float
    stopped_from_s: float | None = None
    starved_s: float = 0.0
    unanswered_starved_s: float = 0.0


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
    starved_s = min(signs.starved_s, patience.starved_s_max)
    silent_s = now_s - max(signs.beat_s, grace_from_s)
    if silent_s - starved_s > patience.beat_s_max:
        return f"no heartbeat for {silent_s:.1f} s{_without_cpu(starved_s)}"
    starved_s = min(signs.unanswered_starved_s, patience.starved_s_max)
    unanswered_s = now_s - max(signs.answered_s, grace_from_s)
    if signs.is_accepting and unanswered_s - starved_s > patience.probe_silent_s_max:
        return f"no answer to a probe for {unanswered_s:.1f} s{_without_cpu(starved_s)}"
    return None


def _without_cpu(starved_s: float) -> str:
    return f", {starved_s:.1f} s of it without a CPU" if starved_s else ""


class Starvation:
    """For how long a child wanted a CPU and did not get one: in all, since its last heartbeat and
    since its last answer.

    Between two looks it was starved for as long as it did not run, if it wants to run now. While
    it sleeps it is not starved, and what it spends spinning is its own.
    """

    def __init__(self) -> None:
        self.total_s = 0.0
        self._at_beat = (0.0, 0.0)
        self._at_answer = (0.0, 0.0)
        self._looked_s = 0.0
        self._cpu_s = 0.0

    def look(self, now_s: float, cpu_s: float, is_runnable: bool) -> None:
        """Look again; `cpu_s` is what it has used so far."""
        if is_runnable and self._looked_s:
            self.total_s += max(0.0, now_s - self._looked_s - (cpu_s - self._cpu_s))
        self._looked_s, self._cpu_s = now_s, cpu_s

    def since(self, beat_s: float, answered_s: float) -> tuple[float, float]:
        """Seconds of the silence after that heartbeat, and of the one after that answer."""
        if beat_s != self._at_beat[0]:
            self._at_beat = beat_s, self.total_s
        if answered_s != self._at_answer[0]:
            self._at_answer = answered_s, self.total_s
        return self.total_s - self._at_beat[1], self.total_s - self._at_answer[1]


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
