"""What every service answers: ping, describe, health, statistics, metrics."""

from typing import Any, Literal

from contracts.types import UNSET, Open, Scalar, UnsetType


class BudgetRow(Open, frozen=True, kw_only=True):
    """A method's promise in milliseconds."""

    p99_ms: int
    timeout_ms: int


class MethodRow(Open, frozen=True, kw_only=True):
    """One method as `describe` tells it; request, response and a stream's item are JSON Schemas."""

    request: dict[str, Any]
    response: dict[str, Any]
    item: dict[str, Any] | UnsetType = UNSET
    errors: list[str]
    budget: BudgetRow
    idempotent: bool
    streaming: bool


class ErrorDescription(Open, frozen=True, kw_only=True):
    """One row of the error table."""

    code: int
    meaning: str
    retryable: bool


class Description(Open, frozen=True, kw_only=True):
    """The socket documents itself."""

    service: str
    instance: str
    protocol_version: int
    methods: dict[str, MethodRow]
    errors: dict[str, ErrorDescription]
    limits: dict[str, Scalar]


class Health(Open, frozen=True, kw_only=True):
    """Live: the loop turns. Ready: it serves. Degraded: it serves less; the reasons say why."""

    live: bool
    ready: bool
    degraded: bool
    reasons: list[str]
    policy_version: int
    uptime_s: float
    service: str
    instance: str


class Statistics(Open, frozen=True, kw_only=True):
    """Counters and gauges of the service."""

    values: dict[str, Scalar]


class Series(Open, frozen=True, kw_only=True):
    """One series of a metric: label values in order; a value, or for a histogram the counts per
    bucket (one more than `buckets`, the last is +Inf), with its sum."""

    labels: list[str]
    value: float
    counts: list[int] = []


class Metric(Open, frozen=True, kw_only=True):
    """One metric family."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: list[str]
    buckets: list[float] = []
    series: list[Series]


class Metrics(Open, frozen=True, kw_only=True):
    """Everything this process counted; `instance` is the process, whose counters began at zero
    ("" from a peer that does not say)."""

    metrics: list[Metric]
    instance: str = ""
