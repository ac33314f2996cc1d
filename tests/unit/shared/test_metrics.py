"""Counters, gauges, histograms."""

import pytest

from shared import metrics
from shared.metrics import OTHER, Counter, Gauge, Histogram, Registry


def test_a_handle_counts_into_its_series() -> None:
    """The same labels give the same handle; the registry collects every family in order."""
    registry = Registry()
    total = registry.add(Counter("ai_request_total", "Requests", ("status",)))
    depth = registry.add(Gauge("ai_queue_depth", "Waiting"))
    total.labels("ok").add()
    total.labels("ok").add(2)
    total.labels("failed").add()
    depth.labels().set(4)
    found = registry.collect()
    assert [metric.name for metric in found] == ["ai_request_total", "ai_queue_depth"]
    assert {series.labels[0]: series.value for series in found[0].series} == {"ok": 3, "failed": 1}
    assert found[1].series[0].value == 4


@pytest.mark.parametrize(("value", "place"), [(0.0, 0), (1.0, 0), (1.1, 1), (2.0, 1), (9.0, 2)])
def test_a_value_falls_into_the_first_bucket_that_holds_it(value: float, place: int) -> None:
    """Bounds are inclusive; above the last one is +Inf."""
    spread = Histogram("ai_stage_seconds", "Stages", buckets=(1.0, 2.0))
    spread.labels().observe(value)
    series = spread.collect().series[0]
    assert series.counts.index(1) == place
    assert series.value == value


def test_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond `series_max` combinations everything is counted under `other`."""
    monkeypatch.setattr(metrics, "series_max", 2)
    total = Counter("ai_x_total", "X", ("version",))
    for version in ("1", "2", "3", "4"):
        total.labels(version).add()
    values = {series.labels[0]: series.value for series in total.collect().series}
    assert values == {"1": 1, "2": 1, OTHER: 2}


def test_a_removed_series_is_gone() -> None:
    """A version that left is not exposed any more."""
    depth = Gauge("ai_depth", "D", ("version",))
    depth.labels("1").set(1)
    depth.remove("1")
    assert depth.collect().series == []


def test_misuse_is_a_programmers_error() -> None:
    """A wrong number of labels, a name twice, bounds that do not ascend."""
    with pytest.raises(AssertionError):
        Counter("a", "A", ("x",)).labels()
    registry = Registry()
    registry.add(Counter("a", "A"))
    with pytest.raises(AssertionError):
        registry.add(Gauge("a", "A"))
    with pytest.raises(AssertionError):
        Histogram("h", "H", buckets=(2.0, 1.0))
