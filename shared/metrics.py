"""Counters, gauges and histograms of one process: plain numbers, formatted only at scrape.

A handle from `labels(…)` is kept by the hot path, so that counting is one addition. Knows nothing
of how metrics travel. One thread (the loop's) writes; a reader may be off by the addition under
way.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

from contracts.service import Metric, Series

series_max = 2_000
"""Label combinations of one family; further ones share the series `other`."""
OTHER = "other"
_NEVER_US = 2**61
"""More than any time, and still a small number in a compiled module."""
SECONDS_BUCKETS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0,
    2.5, 5.0,
)  # fmt: skip
"""Upper bounds for durations in seconds; the default SLA is one of them, so it is decided
exactly."""


class Value:
    """One number with its labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        """Add; a counter only grows (amount ≥ 0)."""
        self.value += amount

    def set(self, value: float) -> None:
        """Replace the number (gauges)."""
        self.value = value


class Distribution:
    """Counts per bucket, the last one for everything above; and the sum."""

    __slots__ = ("_bounds_us", "bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self._bounds_us: list[int] = []

    def observe(self, value: float) -> None:
        """Count one value in the first bucket whose bound is ≥ it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_us(self, values_us: list[int], times: int = 1) -> None:
        """Count values in microseconds, each so many times, where the bounds are seconds. Most are
        in the same bucket as the one before, so they are counted in runs."""
        bounds = self._bounds_us
        if not bounds:
            bounds = self._bounds_us = [round(bound * 1e6) for bound in self.bounds]
        index, run, total = 0, 0, 0
        above, up_to = -1, -1  # the run's bucket; none yet
        for value in values_us:
            total += value
            if value <= above or value > up_to:
                self.counts[index] += run * times
                run, index = 0, bisect_left(bounds, value)
                above = bounds[index - 1] if index else -1
                up_to = bounds[index] if index < len(bounds) else _NEVER_US
            run += 1
        self.counts[index] += run * times
        self.sum += total * times * 1e-6


HandleT = TypeVar("HandleT", Value, Distribution)


class Family(Generic[HandleT]):
    """A metric with its label names and at most `series_max` series."""

    kind: Literal["counter", "gauge", "histogram"]

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help = help
        self.label_names = tuple(labels)
        self._series: dict[tuple[str, ...], HandleT] = {}

    def labels(self, *values: str) -> HandleT:
        """The handle of one series, the same one each time."""
        assert len(values) == len(self.label_names), f"{self.name} has labels {self.label_names}"
        handle = self._series.get(values)
        if handle is None:
            if len(self._series) >= series_max:
                values = (OTHER,) * len(self.label_names)
            handle = self._series.setdefault(values, self._new())
        return handle

    def remove(self, *values: str) -> None:
        """Forget a series, for example of a model version that left."""
        self._series.pop(values, None)

    def _new(self) -> HandleT:
        raise NotImplementedError


class _Numbers(Family[Value]):
    def _new(self) -> Value:
        return Value()

    def collect(self) -> Metric:
        """The family as it stands."""
        return Metric(
            name=self.name,
            kind=self.kind,
            help=self.help,
            labels=list(self.label_names),
            series=[
                Series(labels=list(values), value=handle.value)
                for values, handle in self._series.items()
            ],
        )


class Counter(_Numbers):
    """A number that only grows."""

    kind = "counter"


class Gauge(_Numbers):
    """A number that goes up and down."""

    kind = "gauge"


class Histogram(Family[Distribution]):
    """A distribution over fixed buckets; `buckets` are ascending upper bounds, +Inf is implied."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        help: str,
        labels: Sequence[str] = (),
        buckets: Sequence[float] = SECONDS_BUCKETS,
    ) -> None:
        super().__init__(name, help, labels)
        assert list(buckets) == sorted(set(buckets)), "bounds ascend"
        self.buckets = tuple(buckets)

    def _new(self) -> Distribution:
        return Distribution(self.buckets)

    def collect(self) -> Metric:
        """The family as it stands; a series' value is its sum."""
        return Metric(
            name=self.name,
            kind=self.kind,
            help=self.help,
            labels=list(self.label_names),
            buckets=list(self.buckets),
            series=[
                Series(labels=list(values), value=handle.sum, counts=list(handle.counts))
                for values, handle in self._series.items()
            ],
        )


FamilyT = TypeVar("FamilyT", Counter, Gauge, Histogram)


class Registry:
    """The families of one process: `total = registry.add(Counter("ai_request_total", …))`."""

    def __init__(self) -> None:
        self._families: dict[str, Counter | Gauge | Histogram] = {}

    def add(self, family: FamilyT) -> FamilyT:
        """Register a family under its unique name and return it."""
        assert family.name not in self._families, f"{family.name} is registered twice"
        self._families[family.name] = family
        return family

    def collect(self) -> list[Metric]:
        """Every family, in order of registration."""
        return [family.collect() for family in self._families.values()]
