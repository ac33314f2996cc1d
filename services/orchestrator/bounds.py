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
        self._bounds_requests = False
        self._models: dict[str, Usage] = {}
        self._tenants: dict[str, Usage] = {}

    def apply(self, policies: Iterable[Policy]) -> None:
        """The limits from now on; what is in flight stays counted."""
        limits = {row.name: row.spec for row in policies if isinstance(row, LimitsPolicy)}
        self._default = limits.pop(EVERY, LimitsSpec())
        self._bounds_requests = self._default.in_flight_max is not UNSET
        self._limits = limits

    def take(self, model: str, tenant: str, rows: int, size: int) -> None:
        """Count a request of `size` bytes, or raise OVERLOADED naming the bound."""
        if self.requests >= in_flight_max:
            text = f"{self.requests} requests in flight, in_flight_max is {in_flight_max}"
            raise _full("in_flight", text)
        if self.bytes + size > in_flight_bytes_max:
            raise _full(
                "bytes",
                f"{self.bytes} bytes in flight and {size} more, in_flight_bytes_max is"
                f" {in_flight_bytes_max}",
            )
        of_model = self._models.get(model)
        if of_model is None:
            of_model = self._models[model] = Usage()
        of_tenant = self._tenants.get(tenant)
        if of_tenant is None:
            of_tenant = self._tenants[tenant] = Usage()
        limits = self._limits
        if limits or of_model.rows + rows > self._default.queue_rows_max or self._bounds_requests:
            try:
                _check("model", model, of_model, rows, limits.get(model, self._default))
                if tenant in limits:
                    _check("tenant", tenant, of_tenant, rows, limits[tenant])
            except MeshError:
                self._forget_unused(model, tenant)
                raise
        self.requests += 1
        self.bytes += size
        of_model.requests += 1
        of_model.rows += rows
        of_tenant.requests += 1
        of_tenant.rows += rows

    def release(self, model: str, tenant: str, rows: int, size: int) -> None:
        """The request ended."""
        self.requests -= 1
        self.bytes -= size
        of_model, of_tenant = self._models[model], self._tenants[tenant]
        of_model.requests -= 1
        of_model.rows -= rows
        of_tenant.requests -= 1
        of_tenant.rows -= rows
        if not of_model.requests or not of_tenant.requests:
            self._forget_unused(model, tenant)

    def _forget_unused(self, model: str, tenant: str) -> None:
        if not self._models[model].requests:
            del self._models[model]
        if not self._tenants[tenant].requests:
            del self._tenants[tenant]


def _check(kind: str, name: str, usage: Usage, rows: int, limits: LimitsSpec) -> None:
    if usage.rows + rows > limits.queue_rows_max:
        raise _full(
            "queue_rows",
            f"{kind} {name}: {usage.rows} rows in flight and {rows} more, queue_rows_max is"
            f" {limits.queue_rows_max}",
        )
    if limits.in_flight_max is not UNSET and usage.requests >= limits.in_flight_max:
        raise _full(
            "in_flight",
            f"{kind} {name}: {usage.requests} requests in flight, in_flight_max is"
            f" {limits.in_flight_max}",
        )


def _full(reason: str, message: str) -> MeshError:
    return MeshError(
        "OVERLOADED", message, retry_after_ms=retry_after_ms, details={"reason": reason}
    )
