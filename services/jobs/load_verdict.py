"""What a stretch of load says: figures, whether a promise was kept, where saturation lies. Pure."""

from dataclasses import dataclass
from typing import Any, Literal

from services.jobs.offered_load import Measured

LAG_MS_MAX = 10.0
LAG_SHARE_MAX = 0.2
"""A generator that sends later than this (p99), and later than this share of the measured p99, has
measured itself. One turn of a busy machine is some milliseconds."""
CPU_SHARE_MAX = 0.9
"""Of one core: beyond it the generator queues its own work."""
ANSWERED_SHARE_MIN = 0.98
RATE_FIRST_PER_S = 100.0
RATE_MAX_PER_S = 200_000.0
CLOSE_ENOUGH = 1.1
"""The search ends when the lowest rate not sustained is within this factor of the highest that
is."""
STEPS_MAX = 20

Outcome = Literal["met", "missed", "generator"]


@dataclass(frozen=True)
class Promise:
    """What the contract says."""

    p99_ms: float
    availability: float


def quantile(ordered: list[float], share: float) -> float:
    """A quantile of ascending values; 0 of none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def figures(measured: Measured) -> dict[str, Any]:
    """The figures of a stretch, in milliseconds."""
    latencies, lags = sorted(measured.latencies_s), sorted(measured.lags_s)
    row: dict[str, Any] = {
        "offered_per_s": round(measured.offered_per_s, 1),
        "answered_per_s": round(len(latencies) / measured.seconds, 1),
        "sent": measured.sent,
        "answered": len(latencies),
        "failed": measured.failed,
        "failures": dict(measured.failures),
        "first_error": measured.first_error,
        "availability": round(len(latencies) / measured.sent, 6) if measured.sent else 0.0,
    }
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)):
        row[f"{name}_ms"] = round(quantile(latencies, share) * 1e3, 3)
    row["generator_lag_ms_p99"] = round(quantile(lags, 0.99) * 1e3, 3)
    row["generator_cpu_share"] = round(measured.generator_cpu_share, 3)
    return row


def is_generator_limited(row: dict[str, Any]) -> bool:
    """Whether the generator, not the server, made the figures."""
    lag_ms = row["generator_lag_ms_p99"]
    is_late = lag_ms > LAG_MS_MAX and lag_ms > LAG_SHARE_MAX * row["p99_ms"]
    return bool(is_late or row["generator_cpu_share"] > CPU_SHARE_MAX)


def judge(row: dict[str, Any], promise: Promise) -> tuple[Outcome, str]:
    """Whether the promise was kept, and in words what decided. A promise kept in spite of a slow
    generator is kept; one missed with it is nobody's finding."""
    misses = []
    if row["availability"] < promise.availability:
        misses.append(f"availability {row['availability']:.6g} < {promise.availability:g}")
    if row["p99_ms"] > promise.p99_ms or not row["answered"]:
        misses.append(f"p99 {row['p99_ms']:g} ms > {promise.p99_ms:g} ms")
    if not misses:
        return "met", f"p99 {row['p99_ms']:g} ms ≤ {promise.p99_ms:g} ms"
    if is_generator_limited(row):
        return "generator", (
            f"the generator was the limit: {row['generator_lag_ms_p99']:g} ms late (p99),"
            f" {row['generator_cpu_share']:.0%} of a core"
        )
    return "missed", "; ".join(misses)


class SaturationSearch:
    """Doubles the rate until one is not sustained, then halves the distance (on a log scale).

    `rate` is the next one to try; None when the search is over.
    """

    def __init__(self, first_per_s: float = RATE_FIRST_PER_S) -> None:
        self.rate: float | None = first_per_s
        self.sustained_per_s = 0.0
        self.failed_per_s: float | None = None
        self.is_generator_limit = False
        self._steps = 0

    def learn(self, outcome: Outcome) -> None:
        """What the last rate gave."""
        assert self.rate is not None, "the search is over"
        self._steps += 1
        if outcome == "generator":
            self.is_generator_limit = True
        if outcome == "met":
            self.sustained_per_s = self.rate
        else:
            self.failed_per_s = self.rate
        self.rate = self._next()

    def _next(self) -> float | None:
        low, high = self.sustained_per_s, self.failed_per_s
        if self._steps >= STEPS_MAX:
            return None
        if high is None:
            return low * 2 if low * 2 <= RATE_MAX_PER_S else None
        if low == 0.0:
            return high / 4 if high > 1.0 else None
        return None if high / low <= CLOSE_ENOUGH else (low * high) ** 0.5
