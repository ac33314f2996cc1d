"""What the control plane counts: pushes and their phases, receipts, instances."""

from contracts.control import InstanceRow
from contracts.service import Metric
from services.control_plane.receipts import Stored
from shared.metrics import Counter, Gauge, Histogram, Registry


class Counters:
    """Handles are made once; `metrics` formats at scrape."""

    def __init__(self) -> None:
        self._registry = registry = Registry()
        self._pushes = registry.add(
            Counter("ai_policy_push_total", "Pushes of a policy version by outcome.", ("outcome",))
        )
        self._phases = registry.add(
            Histogram("ai_policy_push_seconds", "Phases of pushes that went through.", ("phase",))
        )
        self._receipts = registry.add(
            Counter("ai_receipt_total", "Receipts that arrived, by what they were.", ("status",))
        )
        self._instances = registry.add(
            Gauge("ai_policy_instances", "Instances by whether they follow.", ("state",))
        )
        self._version = registry.add(Gauge("ai_policy_version", "The policy version in force."))

    def pushed(self, prepare_s: float, append_s: float, activate_s: float) -> None:
        """A version went through."""
        self._pushes.labels("active").add()
        for phase, seconds in (
            ("prepare", prepare_s),
            ("append", append_s),
            ("activate", activate_s),
        ):
            self._phases.labels(phase).observe(seconds)

    def rejected(self) -> None:
        """A version is active nowhere."""
        self._pushes.labels("rejected").add()

    def received(self, kept: int, stored: Stored) -> None:
        """A shipment of receipts, `kept` of them new."""
        self._receipts.labels("kept").add(kept)
        self._receipts.labels("duplicate").add(stored.duplicates)
        self._receipts.labels("unreadable").add(stored.unreadable)

    def metrics(self, version: int, rows: list[InstanceRow]) -> list[Metric]:
        """Everything counted, with the gauges of this moment."""
        self._version.labels().set(version)
        stale = sum(row.stale for row in rows)
        lagging = sum(not row.stale and row.active != version for row in rows)
        for state, count in (
            ("stale", stale),
            ("lagging", lagging),
            ("following", len(rows) - stale - lagging),
        ):
            self._instances.labels(state).set(count)
        return self._registry.collect()
