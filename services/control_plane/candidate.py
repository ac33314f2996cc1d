"""A policy set that would be in force, indexed for the cross rules; and what a broken rule says.

Pure. The rules are in `rules_versions` and `rules_traffic`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from contracts.pack import Manifest
from contracts.policies import (
    DeploymentPolicy,
    ModelPolicy,
    Policy,
    PolicySet,
    PublishedVersion,
    RoutePolicy,
    kind_of,
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What rules need to know of the home: the manifest of each pack that is asked for, or why it
    cannot be read, how many runtimes it starts, and how many it can run."""

    packs: Mapping[str, Manifest | str]
    replicas: int
    replicas_max: int


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule: whose, which, what was received, and what to do."""

    policy: str
    rule: str
    received: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.policy}: {self.rule}; received {self.received}; {self.remedy}"


PolicyT = TypeVar("PolicyT", bound=Policy)


@dataclass(frozen=True)
class Candidate:
    """The set after a commit beside the one before it."""

    before: PolicySet
    after: PolicySet
    surroundings: Surroundings

    def each(self, kind: type[PolicyT]) -> Iterator[PolicyT]:
        """The policies of one kind, by name."""
        return (policy for policy in self.after.policies if isinstance(policy, kind))

    @cached_property
    def published(self) -> dict[tuple[str, str], str]:
        """(model, version) → digest after the commit."""
        return published(self.after)

    @cached_property
    def deployed(self) -> dict[str, set[str]]:
        """Model → deployed versions after the commit."""
        return {
            policy.name: {row.version for row in policy.spec.versions}
            for policy in self.each(DeploymentPolicy)
        }

    @cached_property
    def routes(self) -> dict[str, RoutePolicy]:
        """Model → its route after the commit."""
        return {policy.name: policy for policy in self.each(RoutePolicy)}

    def is_deployed(self, model: str, version: str) -> bool:
        """Whether runtimes load this version."""
        return version in self.deployed.get(model, ())

    def deployed_text(self, model: str) -> str:
        """The deployed versions of a model, for messages."""
        return ", ".join(sorted(self.deployed.get(model, ()), key=int)) or "none"


def name_of(policy: Policy) -> str:
    """How messages name a policy."""
    return f"{kind_of(policy)} {policy.name}"


def versions_of(policies: PolicySet, model: str) -> list[PublishedVersion]:
    """The published versions of a model, oldest first."""
    policy = policies.find("model", model)
    return list(policy.spec.versions) if isinstance(policy, ModelPolicy) else []


def published(policies: PolicySet) -> dict[tuple[str, str], str]:
    """(model, version) → digest of every published version."""
    return {
        (policy.name, row.version): row.digest
        for policy in policies.policies
        if isinstance(policy, ModelPolicy)
        for row in policy.spec.versions
    }


def packs_needed(before: PolicySet, after: PolicySet) -> set[str]:
    """The packs whose manifests the rules look at: newly published or newly deployed ones.

    A pack that left the disk since then does not stand in the way of another commit.
    """
    known, deployed = published(before), _deployed(after) - _deployed(before)
    return {
        digest
        for key, digest in published(after).items()
        if known.get(key) != digest or key in deployed
    }


def _deployed(policies: PolicySet) -> set[tuple[str, str]]:
    return {
        (policy.name, row.version)
        for policy in policies.policies
        if isinstance(policy, DeploymentPolicy)
        for row in policy.spec.versions
    }
