"""Deployments: which versions belong to which runtime."""

import pytest

from contracts.policies import (
    DeployedVersion,
    DeploymentPolicy,
    DeploymentSpec,
    ModelPolicy,
    ModelSpec,
    PolicySet,
    PublishedVersion,
)
from services.model_runtime.deployments import wanted_versions

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
