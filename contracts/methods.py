"""Every method of every service: one row each. Server dispatch, the client's call, `describe`,
the schemas and the SDK's table all come from these rows.
"""

from dataclasses import dataclass
from typing import Any, Literal

from contracts import (
    control,
    distribution,
    execution,
    features,
    inference,
    pack,
    service,
    signing,
)
from contracts.errors import COMMON, ERRORS
from contracts.stages import BUDGET_MS, INFER_P99_MS
from contracts.types import Empty

Role = Literal["client", "operator", "service"]


@dataclass(frozen=True, slots=True)
class Budget:
    """A method's promise: p99 and default time-out in milliseconds, p99 ≤ time-out."""

    p99_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Method:
    """One method. `errors` are those beyond `errors.COMMON`; `item` is the type of a stream's
    items (None: it does not stream); `role` is what the peer's uid needs."""

    name: str
    request: type[Any]
    response: type[Any]
    budget: Budget
    role: Role
    errors: tuple[str, ...] = ()
    idempotent: bool = True
    item: type[Any] | None = None

    @property
    def all_errors(self) -> tuple[str, ...]:
        """Every error that an answer may carry."""
        return (*COMMON, *self.errors)


FAST = Budget(p99_ms=50, timeout_ms=1_000)
READ = Budget(p99_ms=50, timeout_ms=5_000)
COMMIT = Budget(p99_ms=300, timeout_ms=5_000)
INFER_ERRORS = (
    "TOKENIZER_INVALID_INPUT", "INPUT_TOO_LONG", "FEATURE_INVALID", "FEATURE_FROZEN",
    "FEATURE_STALE", "VIEW_UNKNOWN", "MODEL_UNKNOWN", "MODEL_NOT_READY", "OUTPUT_INVALID",
    "MEMORY_EXHAUSTED", "FORWARD_FAILED", "QUOTA_EXCEEDED", "DISK_FULL", "RULE_REFUSED",
)  # fmt: skip
FEATURE_ERRORS = (
    "FEATURE_INVALID", "FEATURE_FROZEN", "FEATURE_STALE", "VIEW_UNKNOWN", "MEMORY_EXHAUSTED",
)  # fmt: skip
POLICY_ERRORS = (
    "POLICY_INVALID", "VERSION_CONFLICT", "DISK_FULL", "POLICY_REJECTED", "PACK_INVALID",
    "MODEL_UNKNOWN",
)  # fmt: skip

EVERY_SERVICE = (
    Method("ping", Empty, Empty, FAST, "client"),
    Method("describe", Empty, service.Description, READ, "client"),
    Method("health", Empty, service.Health, FAST, "client"),
    Method("statistics", Empty, service.Statistics, FAST, "client"),
    Method("metrics", Empty, service.Metrics, FAST, "service"),
)

_ORCHESTRATOR = (
    Method(
        "infer",
        inference.InferenceRequest,
        inference.InferenceResponse,
        Budget(p99_ms=INFER_P99_MS, timeout_ms=5_000),
        "client",
        INFER_ERRORS,
        item=inference.StreamItem,
    ),
    Method("models", Empty, inference.Models, READ, "client"),
)

_CONTROL_PLANE = (
    Method("apply", control.Apply, control.Applied, COMMIT, "operator", POLICY_ERRORS, False),
    Method(
        "policies",
        control.PoliciesRequest,
        control.PoliciesInForce,
        READ,
        "operator",
        ("POLICY_INVALID",),
    ),
    Method("commits", control.CommitsRequest, control.Commits, READ, "operator"),
    Method("verify", Empty, control.Verified, Budget(p99_ms=1_000, timeout_ms=60_000), "operator"),
    Method(
        "publish",
        control.Publish,
        control.Published,
        COMMIT,
        "operator",
        (*POLICY_ERRORS, "MODEL_NOT_READY"),
    ),
    Method(
        "promote",
        control.Promote,
        control.Promoted,
        Budget(p99_ms=30_000, timeout_ms=300_000),
        "operator",
        (*POLICY_ERRORS, "MODEL_NOT_READY"),
        item=control.PromoteStep,
    ),
    Method(
        "rollback",
        control.Rollback,
        control.RolledBack,
        COMMIT,
        "operator",
        (*POLICY_ERRORS, "MODEL_NOT_READY"),
        False,
    ),
    Method(
        "contracts",
        signing.ContractsRequest,
        signing.ContractPage,
        READ,
        "operator",
        ("PACK_INVALID",),
    ),
    Method(
        "contracts_sign",
        signing.ContractsSign,
        signing.ContractsSigned,
        COMMIT,
        "operator",
        POLICY_ERRORS,
    ),
    Method(
        "snapshot",
        control.SnapshotRequest,
        control.Snapshot,
        READ,
        "operator",
        ("TRACE_UNKNOWN", "MODEL_UNKNOWN"),
    ),
    Method("diff", control.Diff, control.Differences, READ, "operator", ("POLICY_INVALID",)),
    Method("status", Empty, control.Status, READ, "operator"),
    Method("trace", control.TraceRequest, control.Trace, READ, "client", ("TRACE_UNKNOWN",)),
    Method(
        "subscribe",
        distribution.Subscribe,
        distribution.Subscribed,
        Budget(p99_ms=86_400_000, timeout_ms=86_400_000),
        "service",
        item=distribution.PolicyItem,
    ),
    Method("acknowledge", distribution.Acknowledge, Empty, FAST, "service"),
    Method("report", distribution.Report, distribution.Reported, FAST, "service"),
    Method(
        "receipts",
        control.Receipts,
        control.ReceiptsStored,
        Budget(p99_ms=500, timeout_ms=5_000),
        "service",
        ("DISK_FULL",),
    ),
)

_DATA_FABRIC = (
    Method(
        "features",
        features.FeatureRequest,
        features.FeatureResponse,
        Budget(p99_ms=BUDGET_MS["features"], timeout_ms=5_000),
        "client",
        FEATURE_ERRORS,
    ),
    Method(
        "features_batch",
        features.FeatureBatch,
        features.FeatureBatchResponse,
        Budget(p99_ms=BUDGET_MS["features"], timeout_ms=1_000),
        "service",
        FEATURE_ERRORS,
    ),
    Method("views", Empty, features.Views, READ, "client"),
    Method(
        "lineage",
        features.LineageRequest,
        features.ViewLineage,
        READ,
        "client",
        ("VIEW_UNKNOWN",),
    ),
)

_MODEL_RUNTIME = (
    Method(
        "execute",
        execution.Execute,
        execution.Executed,
        Budget(
            p99_ms=BUDGET_MS["transfer"]
            + BUDGET_MS["tokenize"]
            + BUDGET_MS["forward"]
            + BUDGET_MS["postprocess"],
            timeout_ms=5_000,
        ),
        "service",
        (
            "TOKENIZER_INVALID_INPUT",
            "INPUT_TOO_LONG",
            "MODEL_UNKNOWN",
            "MODEL_NOT_READY",
            "OUTPUT_INVALID",
            "MEMORY_EXHAUSTED",
            "FORWARD_FAILED",
        ),
    ),
    Method("models", Empty, pack.LoadedModels, READ, "service"),
    Method("memory", Empty, execution.Memory, READ, "service"),
)


def _table(rows: tuple[Method, ...]) -> dict[str, Method]:
    table = {row.name: row for row in (*EVERY_SERVICE, *rows)}
    assert len(table) == len(EVERY_SERVICE) + len(rows), "a method's name is unique on its socket"
    for row in table.values():
        assert row.budget.p99_ms <= row.budget.timeout_ms, f"{row.name}: p99 within its time-out"
        assert all(name in ERRORS for name in row.all_errors), f"{row.name}: errors in the table"
    return table


METHODS: dict[str, dict[str, Method]] = {
    "orchestrator": _table(_ORCHESTRATOR),
    "control_plane": _table(_CONTROL_PLANE),
    "data_fabric": _table(_DATA_FABRIC),
    "model_runtime": _table(_MODEL_RUNTIME),
}
SERVICES: tuple[str, ...] = tuple(METHODS)

_HOPS = ("features_batch", "data_fabric"), ("execute", "model_runtime")
assert (
    sum(METHODS[service_][name].budget.p99_ms for name, service_ in _HOPS)
    + BUDGET_MS["queue"]
    + BUDGET_MS["batch"]
    + BUDGET_MS["reply"]
    <= METHODS["orchestrator"]["infer"].budget.p99_ms
), "the hops' budgets sum to no more than infer's"
