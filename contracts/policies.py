"""Policies: what may change while the mesh runs. One typed struct per kind, a tagged union, and
the built-in defaults that hold where nothing was committed (version 0: no deployment).
"""

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from contracts.limits import policy_set_max
from contracts.signing import Roles
from contracts.stages import INFER_P99_MS, Stage
from contracts.types import (
    UNSET,
    Digest,
    Label,
    Name,
    Open,
    Strict,
    UnsetType,
    Version,
)

SLOTS = 10_000_000
"""A split's shares are integer slots that sum to this."""
RiskKey = Literal["1", "2", "3"]
ServiceName = Literal["orchestrator", "control_plane", "data_fabric", "model_runtime"]
MemoryReaction = Literal["alarm", "shed", "unload", "scale"]
Positive = Annotated[int, Meta(ge=1)]
Slots = Annotated[int, Meta(ge=0, le=SLOTS)]


class PublishedVersion(Strict, frozen=True, kw_only=True):
    """A model version and the pack that it names; the digest lies in `models/`."""

    version: Version
    digest: Digest


class ModelSpec(Strict, frozen=True, kw_only=True):
    """Published versions; they only grow."""

    versions: Annotated[list[PublishedVersion], Meta(max_length=1_024)]


class DeployedVersion(Strict, frozen=True, kw_only=True):
    """A version that runtimes 0 … replicas − 1 load."""

    version: Version
    replicas: Positive = 1
    required: bool = True


class DeploymentSpec(Strict, frozen=True, kw_only=True):
    """Which published versions are loaded."""

    versions: Annotated[list[DeployedVersion], Meta(max_length=64)]


class Fallback(Strict, frozen=True, kw_only=True):
    """The lighter model that answers when the breaker is open."""

    model_name: Name
    version: Version | UnsetType = UNSET


class RouteSpec(Strict, frozen=True, kw_only=True):
    """Which version answers: by default and by alias."""

    default: Version
    aliases: dict[str, Version] = {}
    fallback: Fallback | UnsetType = UNSET


class Shadow(Strict, frozen=True, kw_only=True):
    """A share of requests that is also sent, unanswered, to another version."""

    version: Version
    slots: Slots


class SplitSpec(Strict, frozen=True, kw_only=True):
    """Sticky shares; the slots sum to SLOTS."""

    key: Literal["entity", "tenant", "trace"]
    salt: Label
    shares: dict[Version, Slots]
    shadow: Shadow | UnsetType = UNSET


class Then(Strict, frozen=True, kw_only=True):
    """What a rule does: exactly one of the three."""

    version: Version | UnsetType = UNSET
    risk_level: Annotated[int, Meta(ge=1, le=3)] | UnsetType = UNSET
    refuse: str | UnsetType = UNSET


class RuleSpec(Strict, frozen=True, kw_only=True):
    """A condition over the request's fields."""

    model_name: Name
    order: int
    when: Annotated[str, Meta(max_length=2_048)]
    then: Then


class BatchingSpec(Strict, frozen=True, kw_only=True):
    """How requests gather while every replica is busy."""

    wait_ms: Annotated[float, Meta(ge=0.0, le=1_000.0)] = 10.0
    rows_max: Annotated[int, Meta(ge=1, le=1_024)] = 32
    tokens_max: Positive = 8_192
    tokens_split: Positive = 1_000
    oversize: Literal["refuse", "alone"] = "refuse"


class BreakerSpec(Strict, frozen=True, kw_only=True):
    """When a version is taken out and how it returns."""

    consecutive_timeouts: Positive = 5
    error_rate: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.5
    requests_min: Positive = 20
    open_s: Annotated[float, Meta(gt=0.0)] = 5.0
    probes: Positive = 3


class LimitsSpec(Strict, frozen=True, kw_only=True):
    """What a tenant or model may use; absent rates are bounded by the queue alone.

    `burst` defaults to what a second of `requests_per_s` brings. `tokens_per_day` counts, from
    midnight to midnight UTC, tokens of answered requests; of a model without tokens, rows."""

    requests_per_s: Annotated[float, Meta(gt=0.0)] | UnsetType = UNSET
    burst: Positive | UnsetType = UNSET
    in_flight_max: Positive | UnsetType = UNSET
    queue_rows_max: Positive = 4_096
    tokens_per_day: Positive | UnsetType = UNSET


class PrioritySpec(Strict, frozen=True, kw_only=True):
    """Weights of the risk classes: in the queue, and (`cpu_weights`, 100 is what every other
    process has) of the runtimes that serve them, as far as the machine permits."""

    weights: dict[RiskKey, Positive] = msgspec.field(
        default_factory=lambda: {"1": 100, "2": 50, "3": 10}
    )
    reserved_replicas: dict[RiskKey, Annotated[int, Meta(ge=0)]] = {}
    aging_s: Annotated[float, Meta(gt=0.0)] = 1.0
    cpu_weights: dict[RiskKey, Annotated[int, Meta(ge=1, le=10_000)]] = {}


class InfrastructureSpec(Strict, frozen=True, kw_only=True):
    """What each process of a service may use; an absent limit is the built-in one
    (`contracts/infrastructure.py`). At `alarm_share` of a limit there is an alarm, of memory also
    the reaction, until below `over_share`: `shed` refuses new requests of `shed_classes`, `unload`
    lets a runtime evict versions that nothing routes to."""

    memory_mib_max: Positive | UnsetType = UNSET
    cpu_cores_max: Annotated[float, Meta(gt=0.0)] | UnsetType = UNSET
    descriptors_max: Positive | UnsetType = UNSET
    socket_mib_per_s_max: Annotated[float, Meta(gt=0.0)] | UnsetType = UNSET
    disk_mib_per_s_max: Annotated[float, Meta(gt=0.0)] | UnsetType = UNSET
    alarm_share: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.85
    over_share: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.75
    memory_reaction: MemoryReaction | UnsetType = UNSET
    shed_classes: Annotated[list[RiskKey], Meta(max_length=3)] = msgspec.field(
        default_factory=lambda: ["3"]
    )


class SlaSpec(Strict, frozen=True, kw_only=True):
    """What was promised. A request that would wait longer than `p99_ms` · `shed_factor` is refused
    at once. `infrastructure` is what the processes may use; it stands in the policy `*` alone.
    `sign_offs` are the roles that must have signed the contract page of a version before it is
    published or routed to; those of the policy `*` and of the model's own add up."""

    p99_ms: Annotated[float, Meta(gt=0.0)] = float(INFER_P99_MS)
    shed_factor: Annotated[float, Meta(gt=0.0)] = 1.5
    availability: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.9995
    freshness_s: Annotated[float, Meta(gt=0.0)] = 30.0
    stages: dict[Stage, Annotated[float, Meta(gt=0.0)]] = msgspec.field(
        default_factory=lambda: {"tokenize": 15.0}
    )
    infrastructure: dict[ServiceName, InfrastructureSpec] = {}
    sign_offs: Roles | UnsetType = UNSET


class RolloutSpec(Strict, frozen=True, kw_only=True):
    """Steps in per cent and the gate between them."""

    version: Version
    steps: list[Annotated[int, Meta(ge=1, le=100)]] = msgspec.field(
        default_factory=lambda: [1, 10, 30, 50, 100]
    )
    ratio: Annotated[float, Meta(gt=1.0)] = 1.2
    requests_min: Positive | UnsetType = UNSET
    step_s_min: Annotated[float, Meta(ge=0.0)] = 60.0


class Per1000(Strict, frozen=True, kw_only=True):
    """Prices of a thousand units."""

    requests: Annotated[float, Meta(ge=0.0)] | UnsetType = UNSET
    rows: Annotated[float, Meta(ge=0.0)] | UnsetType = UNSET
    tokens_in: Annotated[float, Meta(ge=0.0)] | UnsetType = UNSET
    tokens_out: Annotated[float, Meta(ge=0.0)] | UnsetType = UNSET


class PriceSpec(Strict, frozen=True, kw_only=True):
    """What usage costs."""

    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}$")]
    per_1000: Per1000 = Per1000()
    per_compute_s: Annotated[float, Meta(ge=0.0)] | UnsetType = UNSET


class DriftField(Strict, frozen=True, kw_only=True):
    """What happens when a field drifts past its limit."""

    limit: Annotated[float, Meta(gt=0.0)] = 0.15
    reaction: Literal["mark", "fallback", "freeze", "breaker", "rollback"] = "mark"
    notify: list[str] = []


class RetentionSpec(Strict, frozen=True, kw_only=True):
    """How long personal data is kept."""

    receipts_days: Positive = 400
    dumps_days: Positive = 7
    dumps_bytes_max: Positive = 1 << 30


class ModelPolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="model"):
    name: Name
    spec: ModelSpec


class DeploymentPolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="deployment"):
    name: Name
    spec: DeploymentSpec


class RoutePolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="route"):
    name: Name
    spec: RouteSpec


class SplitPolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="split"):
    name: Name
    spec: SplitSpec


class RulePolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="rule"):
    name: Name
    spec: RuleSpec


class BatchingPolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="batching"):
    name: Name
    spec: BatchingSpec


class BreakerPolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="breaker"):
    name: Name
    spec: BreakerSpec


class LimitsPolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="limits"):
    name: Label
    spec: LimitsSpec


class PriorityPolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="priority"):
    name: Literal["*"] = "*"
    spec: PrioritySpec


class SlaPolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="sla"):
    name: Label
    spec: SlaSpec


class RolloutPolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="rollout"):
    name: Name
    spec: RolloutSpec


class PricePolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="price"):
    name: Label
    spec: PriceSpec


class DriftPolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="drift"):
    name: Name
    spec: dict[Name, DriftField]


class RetentionPolicy(Strict, frozen=True, kw_only=True, tag_field="kind", tag="retention"):
    name: Literal["*"] = "*"
    spec: RetentionSpec


Policy = (
    ModelPolicy
    | DeploymentPolicy
    | RoutePolicy
    | SplitPolicy
    | RulePolicy
    | BatchingPolicy
    | BreakerPolicy
    | LimitsPolicy
    | PriorityPolicy
    | SlaPolicy
    | RolloutPolicy
    | PricePolicy
    | DriftPolicy
    | RetentionPolicy
)


def kind_of(policy: Policy) -> str:
    """The policy's kind, which is its tag on the wire."""
    return str(policy.__struct_config__.tag)


class PolicySet(Open, frozen=True, kw_only=True):
    """Every policy in force at one version, sorted by (kind, name). Version 0 is empty."""

    version: int
    policies: Annotated[list[Policy], Meta(max_length=policy_set_max)]

    def find(self, kind: str, name: str) -> Policy | None:
        """The policy of this kind and name, or None. Linear: index it where it is hot."""
        for policy in self.policies:
            if kind_of(policy) == kind and policy.name == name:
                return policy
        return None

    def digest(self) -> str:
        """sha256 over the policies' canonical JSON (sorted keys); the `policy` of a lineage."""
        encoded = msgspec.json.encode(self.policies, order="sorted")
        return "sha256:" + hashlib.sha256(encoded).hexdigest()


VERSION_0 = PolicySet(version=0, policies=[])
