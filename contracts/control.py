"""The control plane's messages to operators: policies, commits, versions, snapshots, traces."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from contracts.distribution import Position
from contracts.limits import page_items_max, policies_per_commit_max, receipts_per_call_max
from contracts.lineage import AiVersion, Combination
from contracts.policies import Policy
from contracts.signing import Signature
from contracts.stages import Hop, Timing
from contracts.types import (
    UNSET,
    Digest,
    Label,
    Name,
    Open,
    Strict,
    TraceId,
    UnsetType,
    Version,
)

Instant = Annotated[str, Meta(max_length=40)]
"""RFC 3339 with offset."""
Page = Annotated[int, Meta(ge=1, le=page_items_max)]


class PolicyKey(Strict, frozen=True, kw_only=True):
    """Where a policy stands in the set: its kind and its name."""

    kind: Label
    name: Label


class Apply(Strict, frozen=True, kw_only=True):
    """`apply`: several policies put in, and others taken out (`remove`), in one commit; answered
    once active everywhere. At least one of the two lists is not empty."""

    policies: Annotated[list[Policy], Meta(max_length=policies_per_commit_max)]
    author: Label
    reason: Annotated[str, Meta(min_length=1, max_length=1_024)]
    expected_version: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    remove: Annotated[list[PolicyKey], Meta(max_length=policies_per_commit_max)] = []


class Applied(Open, frozen=True, kw_only=True):
    """The policy version in force and its commit hash; `fenced` instances take it before they
    serve. `changed` is false when the policies were in force already: no commit was made."""

    version: int
    commit: Digest
    fenced: list[str]
    changed: bool = True


class PoliciesRequest(Strict, frozen=True, kw_only=True):
    """`policies`: the set in force now, or at an instant or version."""

    at: Instant | Annotated[int, Meta(ge=0)] | UnsetType = UNSET


class PoliciesInForce(Open, frozen=True, kw_only=True):
    """Every policy of one version."""

    version: int
    digest: Digest
    policies: list[Policy]


class CommitsRequest(Strict, frozen=True, kw_only=True):
    """`commits`: the log after a version, oldest first."""

    after: Annotated[int, Meta(ge=0)] = 0
    limit: Page = 100


class Commit(Open, frozen=True, kw_only=True):
    """One entry of the hash chain. `peer_uid` is who asked, `author` what they claimed. `policy`
    is the digest of the whole set after it; `removed` names policies as [kind, name]; `signed` is
    the contract page that the commit signs off."""

    version: int
    commit: Digest
    previous: Digest
    at: Instant
    author: str
    reason: str
    peer_uid: int
    changed: list[Policy]
    removed: list[tuple[str, str]] = []
    policy: Digest
    signed: Signature | UnsetType = UNSET


class Commits(Open, frozen=True, kw_only=True):
    """A page of the log; `more` when it goes on."""

    commits: list[Commit]
    more: bool


class Verified(Open, frozen=True, kw_only=True):
    """The chain was walked from its beginning. `broken_at` names the first entry that lies."""

    valid: bool
    commits: int
    head: Digest
    broken_at: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class Publish(Strict, frozen=True, kw_only=True):
    """`publish`: name the pack that lies in `models/` as the model's next version."""

    digest: Digest
    alias: Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.\-]{0,63}$")] | UnsetType = UNSET
    author: Label = "operator"


class Published(Open, frozen=True, kw_only=True):
    """The version that the pack got; the same pack twice gets the same one."""

    model: str
    version: Version
    digest: Digest


class Promote(Strict, frozen=True, kw_only=True):
    """`promote`: deploy a version, wait until every required instance has it ready, route to it."""

    model: Name
    version: Version
    author: Label = "operator"
    reason: Annotated[str, Meta(max_length=1_024)] = "promote"


class PromoteStep(Open, frozen=True, kw_only=True):
    """Progress of a promotion."""

    step: Literal["deploying", "loading", "ready", "routing", "active"]
    instance: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class Diverting(Open, frozen=True, kw_only=True):
    """A policy in force that sends requests of the model to another version than its route;
    `detail` says which and how many."""

    kind: str
    name: str
    detail: str


class Promoted(Open, frozen=True, kw_only=True):
    """The route is active. `from_version` is the default before it (unset: there was none, or the
    route led there already); `diverted_by` the policies that send requests elsewhere all the
    same."""

    model: str
    version: Version
    policy_version: int
    from_version: Version | UnsetType = UNSET
    diverted_by: list[Diverting] = []


class Rollback(Strict, frozen=True, kw_only=True):
    """`rollback`: a model's previous route, or the whole state `to` a policy version, as a new
    commit. Exactly one of the two."""

    model: Name | UnsetType = UNSET
    to: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    author: Label = "operator"


class RolledBack(Open, frozen=True, kw_only=True):
    """The new commit that restores the old state. Of a model: `from_version` is the default that
    its route led to, `to_version` the one it leads to now, and `diverted_by` the policies that
    send requests elsewhere all the same."""

    version: int
    commit: Digest
    model: str | UnsetType = UNSET
    from_version: Version | UnsetType = UNSET
    to_version: Version | UnsetType = UNSET
    diverted_by: list[Diverting] = []


class SnapshotRequest(Strict, frozen=True, kw_only=True):
    """`snapshot`: the combination in force now, at an instant, or for a trace."""

    at: Instant | UnsetType = UNSET
    trace_id: TraceId | UnsetType = UNSET
    model: Name | UnsetType = UNSET


class SplitShare(Open, frozen=True, kw_only=True):
    """A share of a model's split: of SLOTS, `slots` go to the version. `combination` is unset
    while nobody reported or used its data yet."""

    version: Version
    slots: int
    combination: Combination | UnsetType = UNSET


class Snapshot(Open, frozen=True, kw_only=True):
    """`.ai-version` of each model in force, and what each digest stands for: of the version that
    its route names by default. `shares` are the versions that a model's split divides requests
    between, by version; not for a trace, which one of them answered."""

    at: Instant
    policy_version: int
    versions: dict[str, AiVersion]
    combinations: dict[str, Combination]
    shares: dict[str, list[SplitShare]] = {}


class Diff(Strict, frozen=True, kw_only=True):
    """`diff`: what changed between two policy versions."""

    since: Annotated[int, Meta(ge=0)]
    until: Annotated[int, Meta(ge=0)]


class Difference(Open, frozen=True, kw_only=True):
    """Policies added, removed and changed, each with both sides."""

    kind: str
    name: str
    before: Policy | None
    after: Policy | None


class Differences(Open, frozen=True, kw_only=True):
    """The differences, sorted by kind and name."""

    differences: list[Difference]


class InstanceRow(Open, frozen=True, kw_only=True):
    """One instance: what it received, checked and has in force, and how old its last report is."""

    service: str
    instance: str
    role: str
    ready: bool
    received: int
    valid: int
    active: int
    stale: bool
    report_age_s: float
    infra: Digest
    models: list[str]


class Status(Open, frozen=True, kw_only=True):
    """Who has which version."""

    version: int
    position: Position
    instances: list[InstanceRow]
    receipts: int
    requests_counted: int


class TraceRequest(Strict, frozen=True, kw_only=True):
    """`trace`: everything about one answered request."""

    trace_id: TraceId


class Trace(Open, frozen=True, kw_only=True):
    """Lineage, times and hops of one request; `answers` is how often this (tenant_id, id) was
    answered (it is billed once). A request refused before a model was chosen has no
    `combination`."""

    trace_id: TraceId
    id: str
    tenant_id: str
    at: Instant
    status: str
    variant: str
    degraded: bool
    marks: list[str]
    risk_level: int
    peer_uid: int
    rows: int
    tokens_in: int
    tokens_out: int
    compute_us: int
    timing_us: Timing
    hops: list[Hop]
    combination: Combination | UnsetType = UNSET
    answers: int
    entity: str | UnsetType = UNSET


RawReceipt = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "array"})]
"""An encoded Receipt."""


class Receipts(Open, frozen=True, kw_only=True):
    """`receipts`: encoded `Receipt`s and the `Combination`s they name, in spool order. `spool`
    identifies the file, `through` the number of the last record in it."""

    spool: str
    through: int
    receipts: Annotated[
        list[RawReceipt],
        Meta(max_length=receipts_per_call_max),
    ]
    combinations: list[Combination]


class ReceiptsStored(Open, frozen=True, kw_only=True):
    """Records up to `through` are on disk and may be removed from the spool."""

    through: int
    counted: int
    duplicates: int
