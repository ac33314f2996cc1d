"""One push of a new policy set to the instances: a state table. Pure: events in, phase out.

    preparing ──all required valid──▶ appending ──commit on disk──▶ activating ──all active──▶ done
        │ invalid, left, or silent for 250 ms     │ disk refused          │ or 250 ms later: whoever
        ▼                                         ▼                       │ is missing is fenced
     rejected ◀───────────────────────────────────┘                       ▼
Invariant: once appended, a push only goes forward. An acknowledgement for another position, or
from an earlier phase, changes nothing.
"""

from collections.abc import Iterable
from typing import Literal

from contracts.distribution import Acknowledge, Position
from contracts.limits import prepare_timeout_s, stale_after_s
from contracts.types import UNSET

Phase = Literal["preparing", "appending", "activating", "done", "rejected"]

activate_timeout_s = stale_after_s
"""How long the answer to an operator waits for `active`: whoever is silent for longer is stale. A
slower instance is fenced, not lost."""


class Push:
    """The push of `position`. `required` must all become valid, then active.

    The shell sends prepare at the start, appends the commit when the phase is `appending` and
    says how that went, sends activate then, and abandon when the phase is `rejected`. It calls
    `tick` at `deadline_s`.
    """

    def __init__(self, position: Position, required: Iterable[str], now_s: float) -> None:
        self.position = position
        self.required = frozenset(required)
        self.phase: Phase = "preparing"
        self.deadline_s = now_s + prepare_timeout_s
        self.valid: set[str] = set()
        """Who holds the candidate on disk; also instances that are not required."""
        self.active: set[str] = set()
        self.was_refused = False
        """Whether an instance said no, which trying again would not change."""
        self.reasons: dict[str, str] = {}
        """Why an instance does not take the set, or why everybody is refused ("")."""
        self._advance()

    def acknowledged(self, acknowledge: Acknowledge) -> None:
        """An instance answered a prepare or an activate."""
        if acknowledge.position != self.position:
            return
        name, state = acknowledge.instance, acknowledge.state
        if state == "active" and self.phase == "activating":
            self.active.add(name)
        elif state == "valid" and self.phase in ("preparing", "appending"):
            self.valid.add(name)
        elif state == "invalid":
            self.valid.discard(name)
            self.was_refused = True
            self._refuse(name, "no reason" if acknowledge.reason is UNSET else acknowledge.reason)
        self._advance()

    def joined(self, names: Iterable[str]) -> None:
        """Instances that came to serve while the others prepared: they are waited for as well."""
        assert self.phase == "appending", f"joined while {self.phase}"
        self.required |= frozenset(names)

    def left(self, name: str) -> None:
        """An instance has no subscription (any more): what it holds is not known."""
        self.valid.discard(name)
        self._refuse(name, "not connected")
        self._advance()

    def excused(self, name: str) -> None:
        """An instance said goodbye: what it holds does not matter any more."""
        self.required -= {name}
        if self.phase == "preparing":
            self.reasons.pop(name, None)
        self._advance()

    def appended(self, now_s: float) -> None:
        """The commit is on the disk: from here on forward only."""
        assert self.phase == "appending", f"appended while {self.phase}"
        self.phase = "activating"
        self.deadline_s = now_s + activate_timeout_s
        self._advance()

    def not_appended(self, reason: str) -> None:
        """The disk refused the commit."""
        assert self.phase == "appending", f"not appended while {self.phase}"
        self.reasons[""] = reason
        self.phase = "rejected"

    def tick(self, now_s: float) -> None:
        """Time passed: who is silent past the deadline is refused or fenced."""
        if now_s < self.deadline_s:
            return
        if self.phase == "preparing":
            for name in self.required - self.valid:
                self._refuse(name, f"silent for {prepare_timeout_s * 1_000:.0f} ms")
            self.phase = "rejected"
        elif self.phase == "activating":
            self.phase = "done"

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens."""
        return self.phase in ("done", "rejected")

    @property
    def fenced(self) -> list[str]:
        """Required instances that do not have the set in force."""
        return sorted(self.required - self.active)

    def rejection(self) -> str:
        """Who refused, and why."""
        return "; ".join(
            f"{name}: {reason}" if name else reason for name, reason in sorted(self.reasons.items())
        )

    def _refuse(self, name: str, reason: str) -> None:
        if name in self.required and self.phase in ("preparing", "activating"):
            self.reasons.setdefault(name, reason)

    def _advance(self) -> None:
        """Leave a phase that has nothing to wait for."""
        if self.phase == "preparing" and self.reasons:
            self.phase = "rejected"
        elif self.phase == "preparing" and self.valid >= self.required:
            self.phase = "appending"
        elif self.phase == "activating" and self.active | self.reasons.keys() >= self.required:
            self.phase = "done"
