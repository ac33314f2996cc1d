"""Why a view or a source is refused: each reason with its line, for the person who wrote it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One reason. `line` counts from 1 in the view's text; 0 stands for the text as a whole."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}" if self.line else self.reason


class ViewRefused(Exception):
    """A view that must not be served; carries every finding, ordered by line."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = sorted(set(findings))
        super().__init__("; ".join(str(finding) for finding in self.findings))

    @classmethod
    def of(cls, reason: str, line: int = 0) -> "ViewRefused":
        """A refusal for one reason."""
        return cls([Finding(line, reason)])


class SourceRefused(Exception):
    """A source whose files are missing, have drifted, or changed while they were read."""
