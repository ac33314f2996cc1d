"""Refuses risk classes while a process is short of memory, as the contract of its service says.

Who measures tells it again each second; what is not told again is forgotten, so that nobody is
refused on the word of a supervisor that went silent.
"""

from collections.abc import Iterable

from contracts.errors import MeshError

forget_s = 5.0
"""Some of the seconds at which it is told."""
retry_after_ms = 1_000
"""Hint: when it is next known whether memory is short."""


class MemoryGate:
    """`is_shut` is what the hot path looks at; `check` only while it is."""

    def __init__(self) -> None:
        self.is_shut = False
        self.refused = 0
        self._classes: frozenset[int] = frozenset()
        self._reason = ""
        self._until_s = 0.0

    def tell(self, classes: Iterable[int], reason: str, now_s: float) -> None:
        """From now on, for a while, these risk levels are refused; none: nobody is."""
        self._classes, self._reason = frozenset(classes), reason
        self._until_s = now_s + forget_s
        self.is_shut = bool(self._classes)

    def reasons(self, now_s: float) -> list[str]:
        """Why this process serves less, if it does."""
        if not self.is_shut or now_s >= self._until_s:
            return []
        classes = ", ".join(map(str, sorted(self._classes)))
        return [f"memory is short, risk {classes} is shed: {self._reason}"]

    def check(self, risk_level: int, now_s: float) -> None:
        """Raises OVERLOADED for a class that is shed."""
        if now_s >= self._until_s:
            self.is_shut = False
        elif risk_level in self._classes:
            self.refused += 1
            raise MeshError(
                "OVERLOADED",
                f"risk level {risk_level} is shed, memory is short: {self._reason}",
                retry_after_ms=retry_after_ms,
                details={"reason": "memory"},
            )
