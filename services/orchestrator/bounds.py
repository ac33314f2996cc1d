"""How much may be in flight: requests and bytes altogether, requests and rows by model and tenant.

A limits policy named after a model or a tenant bounds that one; the one named `*`, or the built-in
default, bounds each model that has none of its own. Rows count from admission to the end, so that
the waiting ones alone are fewer.
"""

from collections.abc import Iterable

from contracts.errors import MeshError
from contracts.policies import LimitsPolicy, LimitsSpec, Policy
from contracts.types import UNSET
from services.orchestrator.config import in_flight_bytes_max, in_flight_max

EVERY = "*"
retry_after_ms = 50
"""Hint for a full queue: some batches' time."""


class Usage:
    """What one model or tenant has in flight."""

    __slots__ = ("requests", "rows")

    def __init__(self) -> None:
        self.requests = 0
        self.rows = 0


class Bounds:
    """Counts what is in flight and refuses what would exceed a bound."""

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0
        self._limits: dict[str, LimitsSpec] = {}
        self._default = LimitsSpec()
        self._models: dict[str, Usage] = {}
        self._tenants: dict[str, Usage] = {}

    def apply(self, policies: Iterable[Policy]) -> None:
        """The limits from now on; what is in flight stays counted."""
        limits = {row.name: row.spec for row in policies if isinstance(row, LimitsPolicy)}
        self._default = limits.pop(EVERY, LimitsSpec())
        self._limits = limits

    def take(self, model: str, tenant: str, rows: int, size: int) -> None:
        """Count a request of `size` bytes, or raise OVERLOADED naming the bound."""
        if self.requests >= in_flight_max:
            raise _full(f"{self.requests} requests in flight, in_flight_max is {in_flight_max}")
        if self.bytes + size > in_flight_bytes_max:
            raise _full(
                f"{self.bytes} bytes in flight and {size} more, in_flight_bytes_max is"
                f" {in_flight_bytes_max}"
            )
        of_model = self._models.get(model) or Usage()
        of_tenant = self._tenants.get(tenant) or Usage()
        _check(f"model {model}", of_model, rows, self._limits.get(model, self._default))
        limits = self._limits.get(tenant)
        if limits is not None:
            _check(f"tenant {tenant}", of_tenant, rows, limits)
        self.requests += 1
        self.bytes += size
        for name, usage, usages in (
            (model, of_model, self._models),
            (tenant, of_tenant, self._tenants),
        ):
            usages[name] = usage
            usage.requests += 1
            usage.rows += rows

    def release(self, model: str, tenant: str, rows: int, size: int) -> None:
        """The request ended."""
        self.requests -= 1
        self.bytes -= size
        for name, usages in ((model, self._models), (tenant, self._tenants)):
            usage = usages[name]
            usage.requests -= 1
            usage.rows -= rows
            if not usage.requests:
                del usages[name]


def _check(who: str, usage: Usage, rows: int, limits: LimitsSpec) -> None:
    if usage.rows + rows > limits.queue_rows_max:
        raise _full(
            f"{who}: {usage.rows} rows in flight and {rows} more, queue_rows_max is"
            f" {limits.queue_rows_max}"
        )
    if limits.in_flight_max is not UNSET and usage.requests >= limits.in_flight_max:
        raise _full(
            f"{who}: {usage.requests} requests in flight, in_flight_max is {limits.in_flight_max}"
        )


def _full(message: str) -> MeshError:
    return MeshError("OVERLOADED", message, retry_after_ms=retry_after_ms)
