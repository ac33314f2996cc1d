"""What a check of `doctor` reports."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]
"""fail makes the exit code ≠ 0; warn is worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's outcome: what was found, and what to do about it ("" when nothing)."""

    check: str
    level: Level
    found: str
    fix: str = ""

    def as_map(self) -> dict[str, str]:
        """For `--json`."""
        return {"check": self.check, "level": self.level, "found": self.found, "fix": self.fix}
