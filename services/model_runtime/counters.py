"""What the runtime counts: metrics by model and version, and plain totals for `statistics`."""

from contracts.service import Metric
from contracts.types import Scalar
from services.model_runtime.config import kept_max
from shared.metrics import Counter, Distribution, Histogram, Registry, Value

_Computed = tuple[str, str, int, int, int]
"""Model, version, rows, failed rows, microseconds of the forward."""


class Counters:
    """Written on the loop only."""

    def __init__(self) -> None:
        self._registry = Registry()
        labels = ("model", "version")
        self._batches = self._registry.add(
            Counter("ai_runtime_batch_total", "Batches answered.", labels)
        )
        self._rows = self._registry.add(
            Counter("ai_runtime_row_total", "Rows by what they came to.", (*labels, "status"))
        )
        self._forward = self._registry.add(
            Histogram("ai_runtime_forward_seconds", "Forward of one batch.", labels)
        )
        self._extra = self._registry.add(
            Counter("ai_runtime_extra_forward_total", "Forwards that isolated bad rows.", labels)
        )
        self._isolated = self._registry.add(
            Counter(
                "ai_runtime_isolated_row_total",
                "Rows that failed again when their batch's were computed apart.",
                labels,
            )
        )
        self._by_version: dict[tuple[str, str], tuple[Value, Value, Distribution]] = {}
        self._kept: list[_Computed] = []
        self._batches_total = self._rows_total = self._rows_failed_total = 0
        self._extra_forwards_total = self._rows_isolated_total = 0
        self.batches_inline = self.batches_cancelled = 0

    def count(self, model: str, version: str, rows: int, failed: int, forward_us: int) -> None:
        """One batch was computed. Kept and counted later, together: a tight loop costs less than
        counting each where it happens."""
        self._kept.append((model, version, rows, failed, forward_us))
        if len(self._kept) >= kept_max:
            self._fold()

    def isolated(self, model: str, version: str, rows: int, forwards: int) -> None:
        """Of a batch whose forward had failed so many rows failed again, in so many forwards."""
        self._isolated.labels(model, version).add(rows)
        self._extra.labels(model, version).add(forwards)
        self._rows_isolated_total += rows
        self._extra_forwards_total += forwards

    def _fold(self) -> None:
        kept, self._kept = self._kept, []
        for model, version, rows, failed, forward_us in kept:
            batches, rows_ok, forward_s = self._handles(model, version)
            batches.value += 1
            rows_ok.value += rows - failed
            forward_s.observe(forward_us / 1e6)
            self._rows_total += rows
            if failed:
                self._rows.labels(model, version, "failed").add(failed)
                self._rows_failed_total += failed
        self._batches_total += len(kept)

    def _handles(self, model: str, version: str) -> tuple[Value, Value, Distribution]:
        """The series of a version that every batch counts in."""
        handles = self._by_version.get((model, version))
        if handles is None:
            handles = self._by_version[model, version] = (
                self._batches.labels(model, version),
                self._rows.labels(model, version, "ok"),
                self._forward.labels(model, version),
            )
        return handles

    def statistics(self) -> dict[str, Scalar]:
        """The totals."""
        self._fold()
        return {
            "batches": self._batches_total,
            "batches_inline": self.batches_inline,
            "batches_cancelled": self.batches_cancelled,
            "rows": self._rows_total,
            "rows_failed": self._rows_failed_total,
            "rows_isolated": self._rows_isolated_total,
            "extra_forwards": self._extra_forwards_total,
        }

    def metrics(self) -> list[Metric]:
        """Every family."""
        self._fold()
        return self._registry.collect()
