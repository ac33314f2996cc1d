"""Whether a request is refused at the door because it would be answered too late. Pure.

What stands before it is what the fair order will serve first: of its own class as much as its
tenant's turn says, of each other class as much as its weight entitles it to meanwhile. Rows that
are yet to arrive count as far as the other classes used the runtimes lately; but no class is
expected to get less than its weight's share, because the fair order gives it that. So a class whose
load fits into its share has next to nothing before it however much of the others waits, and loses
nothing.

A request is judged by its own deadline and, where that is later, by what the model's SLA promises
(`p99_ms` · `shed_factor`). The promise is about waiting: a request is never refused for what it
costs itself, nor while no more than two batches stand before it, which is what a busy runtime
always has.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp

from contracts.errors import MeshError
from services.orchestrator.config import shares_memory_s
from services.orchestrator.fairness import RiskClass

batches_always = 2.0
"""Batches that a busy runtime has: one computing, one waiting."""
batches_missed = 1.0
"""Who waits behind others may miss the batch that it was counted into by a row."""
hint_s_min = 0.01


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a version is served: full batches of `rows_max` rows take `batch_s` on each of
    `replicas`; `busy_s` until they are done with what they have, on the average; `overhead_s` is on
    top for each request."""

    batch_s: float
    rows_max: int
    replicas: int
    busy_s: float
    overhead_s: float

    @property
    def rows_per_s(self) -> float:
        """All replicas together."""
        return self.replicas * self.rows_max / self.batch_s

    def done_s(self, rows: float) -> float:
        """Until so many rows that wait are computed, in whole batches."""
        return self.busy_s + ceil(rows / self.rows_max) * self.batch_s / self.replicas


class Shares:
    """How much of the runtimes each risk class used lately: `rates`, in rows a second, by risk
    level less one."""

    def __init__(self, classes: int) -> None:
        self.rates = [0.0] * classes
        self._sums = [0.0] * classes
        self._weight = 0.0
        self._taken = [0] * classes
        self._at_s = 0.0

    def observe(self, classes: Sequence[RiskClass], now_s: float) -> None:
        """Look at what has been taken until now."""
        passed_s = now_s - self._at_s
        if passed_s <= 0.0:
            return
        if not self._at_s:
            self._at_s = now_s
            self._taken = [each.taken for each in classes]
            return
        keep = exp(-passed_s / shares_memory_s)
        self._at_s = now_s
        self._weight = keep * self._weight + 1.0 - keep
        for index, each in enumerate(classes):
            rate = max(0, each.taken - self._taken[index]) / passed_s
            self._taken[index] = each.taken
            self._sums[index] = keep * self._sums[index] + (1.0 - keep) * rate
            self.rates[index] = self._sums[index] / self._weight


def rows_before(
    own: float, tenants: int, mine: RiskClass, others: Sequence[RiskClass], used: float
) -> float:
    """Rows that leave until `own` more rows of a flow of class `mine` have left.

    `tenants` ≥ 1 flows wait in that class; `used` in [0, 1] is the part of the runtimes that the
    other classes used lately. While `own` rows are served, each other flow of the class gets as
    many, of which some are yet to arrive: at most as many as wait.
    """
    within = min(2.0 * mine.rows, own * tenants)
    fluid, weight = within, mine.weight
    for other in others:
        fluid += min(float(other.rows), within * other.weight / mine.weight)
        weight += other.weight
    return max(fluid, within / max(mine.weight / weight, 1.0 - used))


def judge(
    pace: Pace, before: float, rows: int, left_s: float, patience_s: float, what: str
) -> MeshError | None:
    """Why a request of `rows` rows is refused that has `before` rows before it and `left_s` until
    its deadline; None: it is not."""
    finish_s = pace.done_s(before + rows) + pace.overhead_s
    if before > 0.0:
        finish_s += batches_missed * pace.batch_s / pace.replicas
    if finish_s > left_s:
        text = (
            f"{what}: an answer would take {finish_s * 1e3:.0f} ms with {before:.0f} rows before"
            f" it, {left_s * 1e3:.0f} ms are left"
        )
        return _refused("deadline", text, finish_s - left_s)
    wait_s = pace.done_s(before)
    if wait_s > max(patience_s, batches_always * pace.batch_s):
        text = (
            f"{what}: {before:.0f} rows would leave before it in {wait_s * 1e3:.0f} ms, p99_ms ·"
            f" shed_factor is {patience_s * 1e3:.0f} ms"
        )
        return _refused("sla", text, wait_s - patience_s)
    return None


def _refused(reason: str, text: str, excess_s: float) -> MeshError:
    return MeshError(
        "OVERLOADED",
        text,
        retry_after_ms=ceil(max(excess_s, hint_s_min) * 1e3),
        details={"reason": reason},
    )
