"""Rules of versions: what is published, deployed and routed. Pure; one rule, one function."""

import re
from collections.abc import Iterator
from itertools import pairwise

from contracts.policies import (
    BatchingPolicy,
    BreakerPolicy,
    DeploymentPolicy,
    ModelPolicy,
    RolloutPolicy,
    RoutePolicy,
    SplitPolicy,
)
from contracts.types import UNSET
from services.control_plane.candidate import Candidate, Violation, name_of, published, versions_of

_ALIAS = re.compile(r"^[A-Za-z][A-Za-z0-9_.\-]{0,63}$")
_OF_ONE_MODEL = (
    DeploymentPolicy,
    RoutePolicy,
    SplitPolicy,
    BatchingPolicy,
    BreakerPolicy,
    RolloutPolicy,
)


def versions_only_grow(candidate: Candidate) -> Iterator[Violation]:
    """Published versions stay as they are, and a new one has a higher number than all others."""
    for (model, version), digest in published(candidate.before).items():
        found = candidate.published.get((model, version))
        if found != digest:
            yield Violation(
                f"model {model}",
                "versions only grow: a published version keeps its digest for ever",
                f"version {version} as {found or 'absent'}, published is {digest}",
                f"keep version {version} and add the new pack as the next version",
            )
    for policy in candidate.each(ModelPolicy):
        numbers = [int(row.version) for row in policy.spec.versions]
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            yield Violation(
                name_of(policy),
                "versions stand in ascending order, each once",
                ", ".join(map(str, numbers)),
                "sort them, and give a new version the next number",
            )


def a_pack_has_one_version(candidate: Candidate) -> Iterator[Violation]:
    """The same pack is not published twice under one model."""
    for policy in candidate.each(ModelPolicy):
        seen: dict[str, str] = {}
        for row in policy.spec.versions:
            if row.digest in seen:
                yield Violation(
                    name_of(policy),
                    "a pack has one version",
                    f"{row.digest} as versions {seen[row.digest]} and {row.version}",
                    f"use version {seen[row.digest]}",
                )
            seen.setdefault(row.digest, row.version)


def packs_are_readable(candidate: Candidate) -> Iterator[Violation]:
    """A published digest lies in models/ with a readable manifest, and it is this model's."""
    packs = candidate.surroundings.packs
    for policy in candidate.each(ModelPolicy):
        for row in policy.spec.versions:
            manifest = packs.get(row.digest)
            if isinstance(manifest, str):
                yield Violation(
                    f"{name_of(policy)} version {row.version}",
                    "the digest lies in models/ with a readable manifest",
                    f"{row.digest}: {manifest}",
                    "stage the pack with: mortise publish PACK",
                )
            elif manifest is not None and manifest.contract.name != policy.name:
                yield Violation(
                    f"{name_of(policy)} version {row.version}",
                    "the pack's contract names this model",
                    f"{row.digest} of the model {manifest.contract.name}",
                    f"publish it as a version of {manifest.contract.name}",
                )


def the_model_is_published(candidate: Candidate) -> Iterator[Violation]:
    """A policy of one model names a model that has published versions."""
    for kind in _OF_ONE_MODEL:
        for policy in candidate.each(kind):
            if not versions_of(candidate.after, policy.name):
                yield Violation(
                    name_of(policy),
                    "its name is that of a published model",
                    f"{policy.name!r}, which has no published version",
                    "publish a pack of this model first",
                )


def deployments_name_published_versions(candidate: Candidate) -> Iterator[Violation]:
    """A deployed version is published, and stands in the deployment once."""
    for policy in candidate.each(DeploymentPolicy):
        versions = [row.version for row in policy.spec.versions]
        known = [row.version for row in versions_of(candidate.after, policy.name)]
        for version in versions:
            if version not in known:
                yield Violation(
                    name_of(policy),
                    "deployed versions are published",
                    f"version {version}; published are {', '.join(known) or 'none'}",
                    "publish the pack first, or name a published version",
                )
        if len(set(versions)) != len(versions):
            yield Violation(
                name_of(policy),
                "a version is deployed once",
                ", ".join(versions),
                "name each version once, with its number of replicas",
            )


def replicas_fit_the_home(candidate: Candidate) -> Iterator[Violation]:
    """A version has no more replicas than the home can run runtimes."""
    replicas = candidate.surroundings.replicas_max
    for policy in candidate.each(DeploymentPolicy):
        for row in policy.spec.versions:
            if row.replicas > replicas:
                yield Violation(
                    f"{name_of(policy)} version {row.version}",
                    "replicas are at most the home's",
                    f"{row.replicas} replicas, replicas_max of the home is {replicas}",
                    f"ask for {replicas}, or raise [runtime] replicas_max in mortise.toml and"
                    " start again",
                )


def routes_name_deployed_versions(candidate: Candidate) -> Iterator[Violation]:
    """Default and aliases of a route are deployed versions; an alias starts with a letter."""
    for policy in candidate.each(RoutePolicy):
        named = {"default": policy.spec.default, **policy.spec.aliases}
        for alias, version in named.items():
            if not candidate.is_deployed(policy.name, version):
                yield Violation(
                    name_of(policy),
                    "a route names deployed versions",
                    f"{alias} = {version}; deployed are {candidate.deployed_text(policy.name)}",
                    f"deploy it with: mortise promote {policy.name} {version}",
                )
        for alias in policy.spec.aliases:
            if not _ALIAS.match(alias):
                yield Violation(
                    name_of(policy),
                    "an alias starts with a letter and has up to 64 of A-Z a-z 0-9 _ . -",
                    repr(alias[:80]),
                    "rename the alias",
                )


def fallbacks_end(candidate: Candidate) -> Iterator[Violation]:
    """Fallbacks lead to a routed or deployed version and never back to where they began."""
    for policy in candidate.each(RoutePolicy):
        fallback = policy.spec.fallback
        if fallback is UNSET:
            continue
        if fallback.version is UNSET and fallback.model_name not in candidate.routes:
            yield Violation(
                name_of(policy),
                "a fallback without a version names a model that has a route",
                fallback.model_name,
                f"add a route for {fallback.model_name} or name the version",
            )
        elif fallback.version is not UNSET and not candidate.is_deployed(
            fallback.model_name, fallback.version
        ):
            yield Violation(
                name_of(policy),
                "a fallback names a deployed version",
                f"{fallback.model_name} version {fallback.version}; deployed are"
                f" {candidate.deployed_text(fallback.model_name)}",
                "deploy it, or name a deployed version",
            )
        yield from _loop(candidate, policy)


def _loop(candidate: Candidate, policy: RoutePolicy) -> Iterator[Violation]:
    """Reported once a loop: at the model of it that comes first by name."""
    path, name = [policy.name], policy.name
    while (route := candidate.routes.get(name)) is not None and route.spec.fallback is not UNSET:
        name = route.spec.fallback.model_name
        if name in path:
            break
        path.append(name)
    else:
        return
    if name == policy.name == min(path):
        yield Violation(
            name_of(policy),
            "fallbacks do not loop",
            " → ".join([*path, name]),
            "remove the fallback of one of them",
        )
