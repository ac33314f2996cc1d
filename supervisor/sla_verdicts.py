"""What was promised of each model, and whether a window's counts kept it. Pure.

Source of the quantile: Prometheus' `histogram_quantile`, linear within the bucket; beyond the last
bound nothing is known but that bound.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping

import msgspec

from contracts.errors import CALLERS_OWN
from contracts.policies import ModelPolicy, PolicySet, RoutePolicy, SlaPolicy, SlaSpec
from contracts.types import Open
from shared.metrics import SECONDS_BUCKETS
from supervisor.sla_windows import Counts

EVERY = "*"
OK = "ok"
SLOW_SHARE, USUAL_SHARE, STAGE_SHARE = 0.99, 0.5, 0.95
fresh_share_min = 0.99
"""Of the answers from features: freshness is promised as the p99 is, of 99 answers in 100."""


class Quantile(Open, frozen=True, kw_only=True):
    """Milliseconds, and the bucket in which they were interpolated; `high_ms` is null beyond the
    last bound, and `ms` then the most that is known."""

    ms: float
    low_ms: float
    high_ms: float | None


class Promise(Open, frozen=True, kw_only=True):
    """One SLA: `value` and `target` are shares (availability, freshness) or milliseconds; `kept`
    and `value` are null where nothing was counted."""

    name: str
    value: float | None
    target: float
    kept: bool | None
    bucket: Quantile | None = None


class Row(Open, frozen=True, kw_only=True):
    """A model in one window. `requests` are those that count, `callers_own` those that ended by
    what the caller asked for, `errors` the others that were not answered, by name. `budget_left`
    is the share of the failures that the availability allows for these requests; below 0 more
    were used, null: it allows none. `over_budget` counts stages past their share of the
    budget; `fallbacks` went to another model and count there."""

    model: str
    window: str
    since_s: float
    requests: int
    callers_own: int
    errors: dict[str, int]
    budget_left: float | None
    p50: Quantile | None
    promises: list[Promise]
    missed: list[str]
    over_budget: dict[str, int] = msgspec.field(default_factory=dict)
    fallbacks: int = 0


def routed_digest(policies: PolicySet, model: str) -> str | None:
    """The pack that answers for a model by default."""
    route, published = policies.find("route", model), policies.find("model", model)
    if isinstance(route, RoutePolicy) and isinstance(published, ModelPolicy):
        for row in published.spec.versions:
            if row.version == route.spec.default:
                return row.digest
    return None


def promised(policies: PolicySet, model: str, contract_p99_ms: float | None) -> SlaSpec:
    """The model's own `sla` policy; else that for `*` or the built-in one, in which a p99 of the
    model's contract goes before theirs."""
    own = policies.find("sla", model)
    if isinstance(own, SlaPolicy):
        return own.spec
    usual = policies.find("sla", EVERY)
    spec = usual.spec if isinstance(usual, SlaPolicy) else SlaSpec()
    if contract_p99_ms is None:
        return spec
    return msgspec.structs.replace(spec, p99_ms=contract_p99_ms)


def judge(model: str, window: str, since_s: float, counts: Counts, spec: SlaSpec) -> Row:
    """One row of the report."""
    ends = {name: int(count) for name, count in _below(counts, "end").items()}
    errors = {name: n for name, n in ends.items() if name != OK and name not in CALLERS_OWN}
    answered, failed = ends.get(OK, 0), sum(errors.values())
    requests = answered + failed
    times = _seconds(counts, "time")
    promises = [
        _share("availability", answered, requests, spec.availability),
        _time("p99", quantile(times, SLOW_SHARE), spec.p99_ms),
        *_freshness(_below(counts, "features")),
        *(
            _time(f"{stage} p95", quantile(_seconds(counts, f"stage {stage}"), STAGE_SHARE), ms)
            for stage, ms in spec.stages.items()
        ),
    ]
    allowed = (1.0 - spec.availability) * requests
    return Row(
        model=model,
        window=window,
        since_s=since_s,
        requests=requests,
        callers_own=sum(ends.values()) - requests,
        errors=errors,
        budget_left=None if spec.availability == 1.0 else _left(failed, allowed),
        p50=quantile(times, USUAL_SHARE),
        promises=promises,
        missed=[promise.name for promise in promises if promise.kept is False],
        over_budget=_below(counts, "over"),
        fallbacks=counts.get("fallback", 0),
    )


def late_of(counts: Counts) -> dict[str, int]:
    """Missed deadlines of the whole mesh by `stage hop`."""
    return _below(counts, "late")


def quantile(counts: Mapping[float, int], share: float) -> Quantile | None:
    """Of counts by their bucket's upper bound in seconds; None: nothing was counted."""
    rank = share * sum(counts.values())
    before = 0
    for high_s in sorted(counts):
        if counts[high_s] and before + counts[high_s] >= rank:
            at = bisect_left(SECONDS_BUCKETS, high_s)
            low_s = SECONDS_BUCKETS[at - 1] if at else 0.0
            if math.isinf(high_s):
                return Quantile(ms=low_s * 1e3, low_ms=low_s * 1e3, high_ms=None)
            value_s = low_s + (high_s - low_s) * (rank - before) / counts[high_s]
            return Quantile(ms=value_s * 1e3, low_ms=low_s * 1e3, high_ms=high_s * 1e3)
        before += counts[high_s]
    return None


def _share(name: str, good: int, count: int, target: float) -> Promise:
    value = good / count if count else None
    return Promise(
        name=name, value=value, target=target, kept=None if value is None else value >= target
    )


def _time(name: str, found: Quantile | None, target_ms: float) -> Promise:
    """Beyond the last bound it cannot be shown that the promise was kept: it was not."""
    if found is None:
        return Promise(name=name, value=None, target=target_ms, kept=None)
    is_kept = found.high_ms is not None and found.ms <= target_ms
    return Promise(name=name, value=found.ms, target=target_ms, kept=is_kept, bucket=found)


def _freshness(counts: Mapping[str, int]) -> list[Promise]:
    """No row for a model without features."""
    fresh, stale = counts.get("fresh", 0), counts.get("stale", 0)
    if not fresh + stale:
        return []
    return [_share("freshness", fresh, fresh + stale, fresh_share_min)]


def _left(failed: int, allowed: float) -> float:
    return 1.0 - failed / allowed if allowed else 1.0


def _below(counts: Counts, word: str) -> dict[str, int]:
    """The counts whose name begins with this word, by the rest of it."""
    start = f"{word} "
    return {name.removeprefix(start): n for name, n in counts.items() if name.startswith(start)}


def _seconds(counts: Counts, word: str) -> dict[float, int]:
    return {float(bound): count for bound, count in _below(counts, word).items()}
