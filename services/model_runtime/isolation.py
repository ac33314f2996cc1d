"""Which rows of a batch make its forward fail, found with few more forwards. Pure: `attempt` runs
them.

Invariant: every row is computed, failed, among the `suspects` (a failed forward had them, and at
least one of them is bad) or in `untried` (not alone with anything that failed since).

Halving: one forward a level tells which half of the suspects holds a bad row, and computes the
other when it is good; what was put aside on the way is computed together at the end. So a bad row
costs ⌈log₂ n⌉ + 1 forwards. It failed alone, or two failed forwards had it and of the smaller one
all other rows are good or put aside. Where size is what fails (MEMORY_EXHAUSTED) nothing is
concluded from another half: every set is tried itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from contracts.errors import MeshError
from services.model_runtime.backends.base import Array
from services.model_runtime.config import isolated_rows_max

Attempt = Callable[[Array], MeshError | None]
"""A forward of these rows (indices, ascending): None when they were computed, else why not."""
_OVER = frozenset({"CANCELLED", "DEADLINE_EXCEEDED"})
"""Reasons of an attempt that ran nothing, because nobody waits for the rest any more."""


@dataclass(slots=True)
class Isolated:
    """The error of each row that failed, and how many forwards it took to know."""

    failed: dict[int, MeshError] = field(default_factory=dict)
    forwards: int = 0


def forwards_per_row_max(rows: int) -> int:
    """Forwards that one bad row among so many costs at most, after the one that failed."""
    return (rows - 1).bit_length() + 1


def forwards_max(rows: int) -> int:
    """Forwards that halving a failed batch of so many rows costs at most: enough for
    `isolated_rows_max` bad ones."""
    return isolated_rows_max * forwards_per_row_max(rows)


def isolate(
    rows: Array, error: MeshError, attempt: Attempt, budget: int, alone: int = 0
) -> Isolated:
    """Compute the good ones of `rows`, of which a forward failed with `error`, in at most `budget`
    forwards by halving. Of the rows that are undecided then the first `alone` are tried alone, the
    others fail as a whole."""
    search = _Search(rows, error, attempt, budget)
    while search.suspects.size:
        if search.is_over:
            search.end(alone)
        elif search.suspects.size == 1:
            search.judge_last()
        else:
            search.halve()
    return search.found


class _Search:
    def __init__(self, rows: Array, error: MeshError, attempt: Attempt, budget: int) -> None:
        self.suspects = rows
        self.found = Isolated()
        self._untried: list[Array] = []
        self._error = error
        self._attempt = attempt
        self._budget = budget
        self._has_repeated = False

    @property
    def is_over(self) -> bool:
        """No further forward may run."""
        return self.found.forwards >= self._budget or self._error.name in _OVER

    def halve(self) -> None:
        """Try one half of the suspects."""
        middle = self.suspects.size // 2
        left, right = self.suspects[:middle], self.suspects[middle:]
        if self._fails(left):
            self._untried.append(right)
            self._suspect(left)
        elif self._is_of_size:
            self._put_aside(right)
        else:
            self.suspects = right

    def judge_last(self) -> None:
        """One suspect is left: it failed, unless only the whole batch did so far."""
        if self._has_repeated or self._fails(self.suspects):
            self.found.failed[int(self.suspects[0])] = self._error
        self._take_untried()

    def end(self, alone: int) -> None:
        """Try so many of the undecided rows alone; the others fail as a whole."""
        undecided = np.sort(np.concatenate([self.suspects, *self._untried]))
        self.suspects, self._untried = undecided[:0], []
        tried = 0
        while tried < min(alone, undecided.size) and self._error.name not in _OVER:
            row = undecided[tried : tried + 1]
            if self._fails(row):
                self.found.failed[int(row[0])] = self._error
            tried += 1
        if tried < undecided.size:
            self._give_up(undecided[tried:])

    def _give_up(self, undecided: Array) -> None:
        error = self._error
        if error.name not in _OVER:
            error = MeshError(
                error.name,
                f"{error.message}; undecided for {undecided.size} rows after"
                f" {self.found.forwards} more forwards",
            )
        self.found.failed |= dict.fromkeys(undecided.tolist(), error)

    @property
    def _is_of_size(self) -> bool:
        return self._error.name == "MEMORY_EXHAUSTED"

    def _fails(self, rows: Array) -> bool:
        error = self._attempt(rows)
        self.found.forwards += error is None or error.name not in _OVER
        if error is None:
            return False
        self._error = error
        return True

    def _suspect(self, rows: Array) -> None:
        """A second failed forward had these."""
        self.suspects = rows
        self._has_repeated = True

    def _put_aside(self, rows: Array) -> None:
        self._untried.append(rows)
        self._take_untried()

    def _take_untried(self) -> None:
        """Compute what was put aside: together, or piece by piece where size is what fails."""
        self.suspects = self.suspects[:0]
        self._has_repeated = False
        while self._untried and not self.is_over:
            if not self._is_of_size:
                self._untried = [np.sort(np.concatenate(self._untried))]
            rows = self._untried.pop()
            if self._fails(rows):
                self.suspects = rows
                self._has_repeated = rows.size == 1
                return
        if self._untried:
            self.suspects = self._untried.pop()
