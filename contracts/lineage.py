"""What a prediction was made of: the four digests, the combination in force, and the receipt.

A combination is stored once under its snapshot digest; a receipt names it, so that a receipt stays
small and `trace` still finds everything.
"""

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from contracts.types import UNSET, Digest, Open, UnsetType

NOTHING: str = "sha256:" + hashlib.sha256(b"").hexdigest()
"""The `data` digest of a model without a feature view."""


class Lineage(Open, frozen=True, kw_only=True):
    """The digests of an `infer` reply; `data` and `feature_code` where there is a view."""

    snapshot: Digest
    data: Digest | UnsetType = UNSET
    feature_code: Digest | UnsetType = UNSET
    certificate: Digest | UnsetType = UNSET
    weights: Digest
    tokenizer: Digest | UnsetType = UNSET
    infra: Digest
    policy: Digest


class AiVersion(Open, frozen=True, kw_only=True):
    """The `.ai-version` file: exactly data × model × infrastructure × policy."""

    data: Digest
    model: Digest
    infra: Digest
    policy: Digest


def data_digest(sources: str, feature_code: str) -> str:
    """The `data` member of a snapshot: the sources' content and the code that reads them."""
    return "sha256:" + hashlib.sha256(f"{sources}\n{feature_code}".encode()).hexdigest()


def snapshot_digest(version: AiVersion) -> str:
    """The digest of a combination: sha256 over its canonical JSON (sorted keys, no spaces)."""
    encoded = msgspec.json.encode(version, order="sorted")
    return "sha256:" + hashlib.sha256(encoded).hexdigest()


class Combination(Open, frozen=True, kw_only=True):
    """Everything that receipts with this snapshot digest have in common.

    `lineage.data` is the sources' digest as the fabric reports it; `version.data` is
    `data_digest(lineage.data, lineage.feature_code)`, or NOTHING without a view.
    `version.model` is the pack's Merkle root; `lineage.weights` the digest of its tensors.
    """

    lineage: Lineage
    version: AiVersion
    model_name: str
    model_version: str
    policy_version: int
    view: str | UnsetType = UNSET
    view_version: str | UnsetType = UNSET


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """One ended request. Billing counts a (tenant_id, id) once; every trace_id stays findable.

    `at_us` is wall-clock microseconds since 1970; `compute_us` this request's share of the batch's
    forward; `stages_us` follows `stages.STAGES`; a hop is [instance, received, sent] in
    microseconds since the orchestrator had the frame. `status` is "ok" or an error's name.
    New fields are appended with a default.
    """

    tenant_id: str
    id: str
    trace_id: str
    at_us: int
    status: str
    model_name: str
    model_version: str
    policy_version: int
    snapshot: str
    variant: str
    degraded: bool
    marks: list[str]
    risk_level: int
    peer_uid: int
    rows: int
    tokens_in: int
    tokens_out: int
    compute_us: int
    total_us: int
    stages_us: Annotated[list[int], Meta(max_length=16)]
    hops: list[tuple[str, int, int]]
    entity: str = ""
