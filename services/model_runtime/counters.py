"""What the runtime counts: metrics by model and version, and plain totals for `statistics`."""

from contracts.service import Metric
from contracts.types import Scalar
from services.model_runtime.generations import Generation
from services.model_runtime.model import Model, Outcome
from shared.metrics import Counter, Distribution, Histogram, Registry, Value


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
        self._by_version: dict[tuple[str, str], tuple[Value, Value, Distribution]] = {}
        self.batches = self.batches_inline = self.batches_cancelled = 0
        self.rows = self.rows_failed = 0

    def count(self, generation: Generation[Model], rows: int, outcome: Outcome) -> None:
        """One batch was computed."""
        failed = len(outcome.errors)
        self.batches += 1
        self.rows += rows
        self.rows_failed += failed
        batches, rows_ok, forward_s = self._handles(generation.name, generation.version)
        batches.add(1)
        rows_ok.add(rows - failed)
        forward_s.observe(outcome.times.forward / 1e6)
        if failed:
            self._rows.labels(generation.name, generation.version, "failed").add(failed)

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
        return {
            "batches": self.batches,
            "batches_inline": self.batches_inline,
            "batches_cancelled": self.batches_cancelled,
            "rows": self.rows,
            "rows_failed": self.rows_failed,
        }

    def metrics(self) -> list[Metric]:
        """Every family."""
        return self._registry.collect()
