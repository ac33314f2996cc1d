"""How many parts may be sent again: a share of what was sent lately. Pure: reads no clock.

Without a bound, a runtime that fails everything would be asked twice as much as a healthy one.
Invariant: over any long time, parts sent again ≤ `retry_share_max` of the parts sent first, or
`retry_parts_min` in `retry_memory_s` where that is more: one death of a runtime must not fail the
requests of a quiet mesh.
"""

from math import exp

from services.orchestrator.config import retry_memory_s, retry_parts_min, retry_share_max


class RetryBudget:
    """Both counts forget: what is `retry_memory_s` old weighs 1/e."""

    def __init__(self) -> None:
        self.refused = 0
        self._first = 0.0
        self._again = 0.0
        self._at_s = 0.0

    def sent(self, parts: int, now_s: float) -> None:
        """Parts were sent, whether for the first time or again."""
        self._forget(now_s)
        self._first += parts

    def take(self, now_s: float) -> bool:
        """Whether one more part may be sent again; it counts when it may."""
        self._forget(now_s)
        first = self._first - self._again
        if self._again + 1.0 > max(retry_parts_min, retry_share_max * first):
            self.refused += 1
            return False
        self._again += 1.0
        return True

    def _forget(self, now_s: float) -> None:
        keep = exp(min(0.0, self._at_s - now_s) / retry_memory_s)
        self._at_s = now_s
        self._first *= keep
        self._again *= keep
