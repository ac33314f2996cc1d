"""What the fabric counts: metrics by view and version, and plain totals for `statistics`."""

from contracts.service import Metric
from contracts.types import Scalar
from shared.metrics import Counter, Gauge, Registry


class Counters:
    """Written on the loop only."""

    def __init__(self) -> None:
        self._registry = Registry()
        labels = ("view", "version")
        self._rows = self._registry.add(
            Counter("ai_feature_row_total", "Rows by what they came to.", (*labels, "status"))
        )
        self._freshness = self._registry.add(
            Gauge("ai_feature_freshness_seconds", "Freshness of the latest request.", labels)
        )
        self.requests = self.rows = self.rows_refused = 0

    def count(
        self, view: str, version: str, good: int, refused: int, freshness_s: float | None
    ) -> None:
        """One request's rows were answered."""
        self.requests += 1
        self.rows += good
        self.rows_refused += refused
        self._rows.labels(view, version, "ok").add(good)
        if refused:
            self._rows.labels(view, version, "refused").add(refused)
        if freshness_s is not None:
            self._freshness.labels(view, version).set(freshness_s)

    def statistics(self) -> dict[str, Scalar]:
        """The totals."""
        return {
            "requests": self.requests,
            "rows": self.rows,
            "rows_refused": self.rows_refused,
        }

    def metrics(self) -> list[Metric]:
        """Every family."""
        return self._registry.collect()
