"""What the orchestrator's metrics say of its SLAs, as plain counts by model, and what came on top
since they were last read. Pure; knows no time.

A process counts from zero, so totals are compared with the last ones of the same process alone.
"""

import math
from collections.abc import Iterable, Sequence

from contracts.service import Metric, Metrics, Series
from supervisor.sla_windows import MESH, Counts, add_counts

UNKNOWN = "unknown"
"""The model of requests for names that nobody published: no promise was made about them."""
PREFIXES = {
    "ai_request_total": ("end", "status"),
    "ai_request_seconds": ("time",),
    "ai_stage_seconds": ("stage", "stage"),
    "ai_budget_exceeded_total": ("over", "stage"),
    "ai_feature_answers_total": ("features", "freshness"),
    "ai_fallback_total": ("fallback",),
    "ai_deadline_exceeded_total": ("late", "stage", "hop"),
}
"""A count's name by its metric: a word, the values of these labels, and of a histogram the upper
bound of the bucket: `end ok`, `time 0.25`, `stage forward 0.25`, `late queue model_runtime`."""
instances_max = 4
"""Processes whose totals are remembered: the active one, and those that may answer once more."""


def totals_of(metrics: Iterable[Metric]) -> dict[str, Counts]:
    """Everything since the process began, by model; its versions are added up."""
    found: dict[str, Counts] = {}
    for metric in metrics:
        if metric.name not in PREFIXES:
            continue
        word, *wanted = PREFIXES[metric.name]
        for row in metric.series:
            given = dict(zip(metric.labels, row.labels, strict=False))
            model = given.get("model", MESH)
            if model == UNKNOWN:
                continue
            name = " ".join((word, *(given.get(label, UNKNOWN) for label in wanted)))
            add_counts(found.setdefault(model, {}), _counts(name, metric.buckets, row))
    return found


def _counts(name: str, buckets: Sequence[float], row: Series) -> Counts:
    if not buckets:
        return {name: int(row.value)} if row.value else {}
    bounds = (*buckets, math.inf)
    return {
        f"{name} {bound:g}": count
        for bound, count in zip(bounds, row.counts, strict=False)
        if count
    }


class Differences:
    """Remembers what each process had counted when it was last asked."""

    def __init__(self) -> None:
        self._totals: dict[str, dict[str, Counts]] = {}

    def take(self, answer: Metrics) -> dict[str, Counts]:
        """What this process counted since its last answer, by model; all of it at the first one.
        A total that fell is a new one: it counts whole."""
        totals = totals_of(answer.metrics)
        before = self._totals.pop(answer.instance, {})
        self._totals[answer.instance] = totals
        while len(self._totals) > instances_max:
            del self._totals[next(iter(self._totals))]
        found = {model: more(counts, before.get(model, {})) for model, counts in totals.items()}
        return {model: counts for model, counts in found.items() if counts}


def more(now: Counts, before: Counts) -> Counts:
    """What came on top of what was there, name by name."""
    found = {}
    for name, total in now.items():
        was = before.get(name, 0)
        came = total - was if total >= was else total
        if came:
            found[name] = came
    return found
