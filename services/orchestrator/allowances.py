"""Rates and daily quotas: token buckets and counts of rows, by model and tenant. Pure: reads no
clock.

A limits policy named after a model or a tenant holds for that one; the one named `*` for each model
that has none of its own. A request must be allowed as its model's and as its tenant's; what refuses
it takes nothing. A bucket holds `burst` requests (absent: what a second brings, at least one) and
gains `requests_per_s`, so that over any time t at most burst + requests_per_s · t requests pass
(Turner, "New directions in communications", 1986). Quotas count tokens; of a model without tokens
its rows. They are charged at the door and given back when there was no answer.
"""

from collections.abc import Iterable, Mapping
from math import ceil

from contracts.errors import MeshError
from contracts.policies import LimitsPolicy, LimitsSpec, Policy
from contracts.types import UNSET
from services.orchestrator.bounds import EVERY

DAY_S = 86_400
_whole = 1.0 - 1e-6
"""What a bucket gained counts as one request though its sum was rounded."""
Holder = tuple[str, str]
"""("model" or "tenant", name)."""


class Bucket:
    """What one holder may still send at once."""

    def __init__(self, rate_per_s: float, burst: int, now_s: float) -> None:
        self.rate_per_s = rate_per_s
        self.burst = burst
        self._level = float(burst)
        self._at_s = now_s

    @classmethod
    def of(cls, spec: LimitsSpec, now_s: float) -> "Bucket | None":
        """A full bucket, where the policy names a rate."""
        rate = spec.requests_per_s
        if rate is UNSET:
            return None
        burst = max(1, ceil(rate)) if spec.burst is UNSET else spec.burst
        return cls(rate, burst, now_s)

    def missing_s(self, now_s: float) -> float:
        """How long until one request may pass; 0 is now."""
        passed_s = max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self._level = min(float(self.burst), self._level + passed_s * self.rate_per_s)
        return 0.0 if self._level >= _whole else (1.0 - self._level) / self.rate_per_s

    def take(self) -> None:
        """One request passes."""
        self._level -= 1.0


class Allowances:
    """What each holder has left. `is_needed`: some policy names a rate or a quota; without one
    nothing here has to be asked. `used` rows of `day`, counted in days since 1970 (UTC);
    `is_changed` since it was last kept."""

    def __init__(self) -> None:
        self.is_needed = False
        self.is_changed = False
        self.day = 0
        self.used: dict[Holder, int] = {}
        self._limits: dict[str, LimitsSpec] = {}
        self._default = LimitsSpec()
        self._buckets: dict[Holder, tuple[LimitsSpec, Bucket | None]] = {}

    def apply(self, policies: Iterable[Policy]) -> None:
        """The limits from now on. A bucket whose policy stayed the same keeps its level; what was
        used of a day stays used."""
        limits = {row.name: row.spec for row in policies if isinstance(row, LimitsPolicy)}
        self.is_needed = any(
            spec.requests_per_s is not UNSET or spec.tokens_per_day is not UNSET
            for spec in limits.values()
        )
        self._default = limits.pop(EVERY, LimitsSpec())
        self._limits = limits
        self._buckets = {
            holder: kept for holder, kept in self._buckets.items() if kept[0] == self._spec(holder)
        }

    def take(self, model: str, tenant: str, rows: int, now_s: float, wall_s: float) -> None:
        """Charge a request of so many rows (of a token model: tokens), or raise QUOTA_EXCEEDED
        naming the limit and when to come again."""
        self._begin_day(int(wall_s // DAY_S))
        holders = self._holders(model, tenant)
        buckets = []
        for holder in holders:
            self._check_quota(holder, rows, wall_s)
            bucket = self._bucket(holder, now_s)
            if bucket is not None:
                missing_s = bucket.missing_s(now_s)
                if missing_s > 0.0:
                    raise _over_rate(holder, bucket, missing_s)
                buckets.append(bucket)
        for bucket in buckets:
            bucket.take()
        self._count(holders, rows)

    def give_back(self, model: str, tenant: str, rows: int, wall_s: float) -> None:
        """The request got no answer: its rows are not used. What began before midnight counts
        for nobody afterwards."""
        self._begin_day(int(wall_s // DAY_S))
        self._count(self._holders(model, tenant), -rows)

    def restore(self, day: int, used: Mapping[Holder, int]) -> None:
        """What an earlier process counted; added to what this one has counted on the same day."""
        if day == self.day:
            for holder, rows in used.items():
                self.used[holder] = self.used.get(holder, 0) + rows
        elif day > self.day:
            self.day, self.used = day, dict(used)

    def _begin_day(self, day: int) -> None:
        if day != self.day:
            self.day, self.used, self.is_changed = day, {}, True

    def _holders(self, model: str, tenant: str) -> list[Holder]:
        holders = [("model", model)]
        if tenant in self._limits:
            holders.append(("tenant", tenant))
        return holders

    def _spec(self, holder: Holder) -> LimitsSpec | None:
        return self._limits.get(holder[1], self._default if holder[0] == "model" else None)

    def _bucket(self, holder: Holder, now_s: float) -> Bucket | None:
        kept = self._buckets.get(holder)
        if kept is None:
            spec = self._spec(holder)
            assert spec is not None, "a holder has a policy"
            kept = self._buckets[holder] = (spec, Bucket.of(spec, now_s))
        return kept[1]

    def _check_quota(self, holder: Holder, rows: int, wall_s: float) -> None:
        spec = self._spec(holder)
        if spec is None or spec.tokens_per_day is UNSET:
            return
        used = self.used.get(holder, 0)
        if used + rows > spec.tokens_per_day:
            kind, name = holder
            raise MeshError(
                "QUOTA_EXCEEDED",
                f"{kind} {name}: {used} tokens or rows used today (UTC) and {rows} more,"
                f" tokens_per_day is {spec.tokens_per_day}",
                retry_after_ms=ceil((DAY_S - wall_s % DAY_S) * 1e3),
                details={"reason": "daily_quota", kind: name},
            )

    def _count(self, holders: list[Holder], rows: int) -> None:
        for holder in holders:
            spec = self._spec(holder)
            if spec is not None and spec.tokens_per_day is not UNSET:
                self.used[holder] = max(0, self.used.get(holder, 0) + rows)
                self.is_changed = True


def _over_rate(holder: Holder, bucket: Bucket, missing_s: float) -> MeshError:
    kind, name = holder
    return MeshError(
        "QUOTA_EXCEEDED",
        f"{kind} {name}: requests_per_s is {bucket.rate_per_s:g} with a burst of {bucket.burst};"
        f" the next request may come in {missing_s * 1e3:.0f} ms",
        retry_after_ms=max(1, ceil(missing_s * 1e3)),
        details={"reason": "rate", kind: name},
    )
