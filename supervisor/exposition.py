"""Metrics of all processes as one Prometheus text: pure, from the structs of the contract."""

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import Metric as Exposed
from prometheus_client.exposition import generate_latest

from contracts.service import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Collected:
    """The shape that prometheus_client prints from."""

    def __init__(self, families: list[Exposed]) -> None:
        self._families = families

    def collect(self) -> Iterable[Exposed]:
        """The families."""
        return self._families


def exposition(parts: Iterable[tuple[str, int, list[Metric]]]) -> bytes:
    """The text for (service, index, metrics) of each process; equal names become one family.

    Every series gets the labels `service` and `replica`; a label of that name that it has already
    becomes `exported_…`, as Prometheus itself does it.

    A family that another process declared with another kind is left out: the first one stands.
    """
    families: dict[str, Exposed] = {}
    for service, index, metrics in parts:
        for metric in metrics:
            name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
            family = families.setdefault(name, Exposed(name, metric.help, metric.kind))
            if family.type == metric.kind:
                _add(family, metric, {"service": service, "replica": str(index)})
    return generate_latest(_Collected(list(families.values())))


def _add(family: Exposed, metric: Metric, place: dict[str, str]) -> None:
    for series in metric.series:
        own = dict(zip(metric.labels, series.labels, strict=True))
        labels = {(f"exported_{key}" if key in place else key): own[key] for key in own} | place
        if metric.kind == "counter":
            family.add_sample(f"{family.name}_total", labels, series.value)
        elif metric.kind == "gauge":
            family.add_sample(family.name, labels, series.value)
        else:
            bounds = [*(f"{bound:g}" for bound in metric.buckets), "+Inf"]
            counts = list(accumulate(series.counts))
            for bound, count in zip(bounds, counts, strict=True):
                family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
            family.add_sample(f"{family.name}_count", labels, counts[-1])
            family.add_sample(f"{family.name}_sum", labels, series.value)
