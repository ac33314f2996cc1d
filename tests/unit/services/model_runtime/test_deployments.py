"""Deployments: which versions belong to which runtime."""

import pytest

from contracts.policies import (
    SLOTS,
    DeployedVersion,
    DeploymentPolicy,
    DeploymentSpec,
    Fallback,
    ModelPolicy,
    ModelSpec,
    PolicySet,
    PublishedVersion,
    RoutePolicy,
    RouteSpec,
    RulePolicy,
    RuleSpec,
    Shadow,
    SplitPolicy,
    SplitSpec,
    Then,
)
from services.model_runtime.deployments import routed_versions, wanted_versions

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def policies(*deployed: DeployedVersion) -> PolicySet:
    """Two published versions of which some are deployed."""
    published = [PublishedVersion(version="1", digest=A), PublishedVersion(version="2", digest=B)]
    return PolicySet(
        version=3,
        policies=[
            DeploymentPolicy(name="delay", spec=DeploymentSpec(versions=list(deployed))),
            ModelPolicy(name="delay", spec=ModelSpec(versions=published)),
        ],
    )


def test_a_version_loads_on_as_many_runtimes_as_it_has_replicas() -> None:
    """Runtimes 0 … replicas − 1."""
    deployed = policies(DeployedVersion(version="1"), DeployedVersion(version="2", replicas=2))
    assert wanted_versions(deployed, 0) == {("delay", "1"): A, ("delay", "2"): B}
    assert wanted_versions(deployed, 1) == {("delay", "2"): B}
    assert wanted_versions(deployed, 2) == {}


def test_a_deployment_of_an_unpublished_version_is_refused() -> None:
    """It names no pack."""
    with pytest.raises(ValueError, match="delay names version 9"):
        wanted_versions(policies(DeployedVersion(version="9")), 0)


def test_nothing_is_wanted_without_policies() -> None:
    """Version 0 deploys nothing."""
    assert wanted_versions(PolicySet(version=0, policies=[]), 0) == {}


def test_a_version_is_reached_by_route_alias_split_shadow_rule_and_fallback() -> None:
    """And by nothing else: a deployed version that none of them names is reached by no request
    that does not ask for it."""
    route = RouteSpec(
        default="1",
        aliases={"stable": "2"},
        fallback=Fallback(model_name="small", version="7"),
    )
    split = SplitSpec(
        key="entity", salt="s", shares={"3": SLOTS}, shadow=Shadow(version="4", slots=1)
    )
    to_version = RuleSpec(model_name="delay", order=1, when="true", then=Then(version="5"))
    refusing = RuleSpec(model_name="delay", order=2, when="true", then=Then(refuse="no"))
    routed = PolicySet(
        version=1,
        policies=[
            *policies(DeployedVersion(version="9")).policies,
            RoutePolicy(name="delay", spec=route),
            SplitPolicy(name="delay", spec=split),
            RulePolicy(name="a", spec=to_version),
            RulePolicy(name="b", spec=refusing),
        ],
    )
    reached = {("delay", version) for version in "12345"} | {("small", "7")}
    assert routed_versions(routed) == reached
