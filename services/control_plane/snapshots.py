"""The combination data × model × infrastructure × policy in force, and what differs between two
policy sets. Pure.

Where the members come from: `model` and `policy` from the commit log and the pack; `infra` from
the machine; `data` for now from the lineage that the fabric reports for the model's view, and for
an instant from the combination that receipts of that time name. A model with a view whose data
nobody has reported or used yet is left out: naming it would be a guess.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from contracts.control import Difference
from contracts.features import FeatureLineage
from contracts.lineage import (
    NOTHING,
    AiVersion,
    Combination,
    Lineage,
    data_digest,
    snapshot_digest,
)
from contracts.pack import Manifest
from contracts.policies import PolicySet, RoutePolicy, SplitPolicy
from contracts.types import UNSET
from services.control_plane.candidate import published
from services.control_plane.chain import key_of
from services.control_plane.ledger import Used


@dataclass(frozen=True, slots=True)
class Routed:
    """The version of a model that answers by default."""

    model: str
    version: str
    digest: str


def routed(policies: PolicySet) -> list[Routed]:
    """What each route's default names, by model."""
    digests = published(policies)
    return [
        Routed(policy.name, policy.spec.default, digests[policy.name, policy.spec.default])
        for policy in policies.policies
        if isinstance(policy, RoutePolicy)
    ]


@dataclass(frozen=True, slots=True)
class Divided:
    """A version that a model's split sends `slots` of SLOTS to."""

    model: Routed
    slots: int


def divided(policies: PolicySet, models: Sequence[Routed]) -> list[Divided]:
    """The shares of these models' splits, by model and version; empty shares are left out."""
    digests, names = published(policies), {model.model for model in models}
    return [
        Divided(Routed(policy.name, version, digests[policy.name, version]), slots)
        for policy in policies.policies
        if isinstance(policy, SplitPolicy) and policy.name in names
        for version, slots in sorted(policy.spec.shares.items(), key=lambda share: int(share[0]))
        if slots
    ]


def combine(
    model: Routed,
    policies: PolicySet,
    manifest: Manifest,
    features: FeatureLineage | None,
    infra: str,
) -> Combination:
    """The combination of a version with its features' lineage (None: it has no view)."""
    data = NOTHING if features is None else data_digest(features.data, features.feature_code)
    version = AiVersion(data=data, model=model.digest, infra=infra, policy=policies.digest())
    view = manifest.contract.view
    return Combination(
        lineage=Lineage(
            snapshot=snapshot_digest(version),
            data=UNSET if features is None else features.data,
            feature_code=UNSET if features is None else features.feature_code,
            certificate=UNSET if features is None else features.certificate,
            weights=manifest.weights,
            tokenizer=manifest.tokenizer,
            infra=infra,
            policy=version.policy,
        ),
        version=version,
        model_name=model.model,
        model_version=model.version,
        policy_version=policies.version,
        view=UNSET if view is UNSET else view.name,
        view_version=UNSET if view is UNSET else view.version,
    )


def choose(
    used: Sequence[Used], model: Routed, policies: PolicySet, at_us: int
) -> Combination | None:
    """What answered for a model at an instant: of the combinations of its version under the
    policy in force one that was in use then, else the newest before it; the policy's digest is
    put right where only an older policy's receipts exist."""
    of_version = [one for one in used if one.combination.model_version == model.version]
    if not of_version:
        return None
    policy = policies.digest()

    def fit(one: Used) -> tuple[bool, bool, int]:
        return one.combination.version.policy == policy, one.last_us >= at_us, one.first_us

    return under_policy(max(of_version, key=fit).combination, policies)


def under_policy(combination: Combination, policies: PolicySet) -> Combination:
    """The same data, model and infrastructure under another policy set."""
    policy = policies.digest()
    version = msgspec.structs.replace(combination.version, policy=policy)
    lineage = msgspec.structs.replace(
        combination.lineage, policy=policy, snapshot=snapshot_digest(version)
    )
    return msgspec.structs.replace(
        combination, version=version, lineage=lineage, policy_version=policies.version
    )


def differences(since: PolicySet, until: PolicySet) -> list[Difference]:
    """Policies added, removed and changed, by kind and name."""
    before = {key_of(policy): policy for policy in since.policies}
    after = {key_of(policy): policy for policy in until.policies}
    return [
        Difference(kind=key[0], name=key[1], before=before.get(key), after=after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
