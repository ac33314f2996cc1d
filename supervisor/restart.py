"""When an ended child starts again: restart intensity in OTP's words, as a pure table.

State: steady → (more than `restarts_max` exits within `period_s`, or a refusal) → degraded → (ready
and up for `stable_s`) → steady. Steady: the first exit of a period starts again at once, the next
ones after 0.1 s, doubled each time up to 5 s. Degraded: one slow try at a time, ever slower up to a
bound. Any exit counts, also with code 0; one that the supervisor asked for does not.
"""

from collections import deque
from dataclasses import dataclass

from contracts import limits


@dataclass(frozen=True, slots=True)
class Intensity:
    """The bounds of restarting, in seconds. `jitter` is the share by which a delay varies."""

    restarts_max: int = limits.restarts_max
    period_s: float = limits.restart_period_s
    backoff_s_min: float = 0.1
    backoff_s_max: float = 5.0
    slow_s_min: float = 20.0
    slow_s_max: float = 60.0
    stable_s: float = 5.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        assert 0 <= self.jitter < 1, "a delay stays positive"
        assert self.backoff_s_min <= self.backoff_s_max <= self.slow_s_max, "delays only grow"


class Restarts:
    """The exits of one child and what follows from them."""

    def __init__(self, intensity: Intensity) -> None:
        self._intensity = intensity
        self._exits_s: deque[float] = deque(maxlen=intensity.restarts_max + 1)
        self._slow_tries = 0
        self.is_degraded = False
        self.count = 0

    def exited(self, now_s: float, random_share: float, *, is_refusal: bool = False) -> float:
        """Count an exit; return the seconds to wait before the next start.

        `random_share` in [0, 1) chooses the place within the jitter. A refusal (of a file that
        only the operator can correct) would come again, so what follows are slow tries.
        """
        bounds = self._intensity
        self.count += 1
        while self._exits_s and now_s - self._exits_s[0] >= bounds.period_s:
            self._exits_s.popleft()
        self._exits_s.append(now_s)
        if is_refusal or self.is_degraded or len(self._exits_s) > bounds.restarts_max:
            self.is_degraded = True
            delay_s = min(bounds.slow_s_max, bounds.slow_s_min * 2.0**self._slow_tries)
            self._slow_tries += 1
        elif len(self._exits_s) == 1:
            return 0.0
        else:
            doublings = len(self._exits_s) - 2
            delay_s = min(bounds.backoff_s_max, bounds.backoff_s_min * 2.0**doublings)
        return delay_s * (1.0 + bounds.jitter * (2.0 * random_share - 1.0))

    def is_stable(self, up_s: float) -> bool:
        """Whether a child that has been ready for `up_s` counts as recovered."""
        return up_s >= self._intensity.stable_s

    def recovered(self) -> None:
        """The child was ready long enough: its past no longer counts against it."""
        self.is_degraded = False
        self._slow_tries = 0
        self._exits_s.clear()
