"""What publish, promote and rollback change, without a database."""

from typing import Any

import msgspec
import pytest

from contracts.errors import MeshError
from contracts.policies import Policy, PolicySet
from services.control_plane import versions


def policy(kind: str, name: str, spec: dict[str, Any]) -> Policy:
    """A policy from its plain form."""
    return msgspec.convert({"kind": kind, "name": name, "spec": spec}, Policy)


def published(*numbers: int) -> Policy:
    """Model m with these versions."""
    rows = [{"version": str(n), "digest": digest(n)} for n in numbers]
    return policy("model", "m", {"versions": rows})


def digest(number: int) -> str:
    """The digest of version n's pack."""
    return f"sha256:{number:064x}"


def deployed(*numbers: int, replicas: int = 1) -> Policy:
    """Model m's deployment."""
    rows = [{"version": str(n), "replicas": replicas} for n in numbers]
    return policy("deployment", "m", {"versions": rows})


def route(default: int, **spec: Any) -> Policy:
    """Model m's route."""
    return policy("route", "m", {"default": str(default), **spec})


def put(*policies: Policy) -> PolicySet:
    """A policy set."""
    return PolicySet(version=5, policies=list(policies))


def test_the_next_version_is_one_higher() -> None:
    """The first pack of a model is version 1; the numbers of the others stay."""
    assert versions.publish(put(), "m", digest(9)).spec.versions[0].version == "1"
    rows = versions.publish(put(published(1, 9)), "m", digest(10)).spec.versions
    assert [row.version for row in rows] == ["1", "9", "10"]


def test_a_pack_is_found_by_its_digest() -> None:
    """The same pack has the version it got before."""
    assert versions.version_of(put(published(1, 2)), "m", digest(2)) == "2"
    assert versions.version_of(put(published(1, 2)), "m", digest(3)) is None


def test_an_unpublished_version_is_named_with_those_there_are() -> None:
    """MODEL_UNKNOWN says what could have been meant."""
    with pytest.raises(MeshError, match=r"version 3 of m is not published; published are 1, 2"):
        versions.published_digest(put(published(1, 2)), "m", "3")
    with pytest.raises(MeshError, match="published are none"):
        versions.published_digest(put(), "m", "1")


def test_deploying_keeps_what_traffic_names_and_drops_the_rest() -> None:
    """Default, aliases, shares, shadow, rules, rollout and fallbacks keep their versions; the new
    one gets as many replicas as the serving one."""
    policies = put(
        published(1, 2, 3, 4, 5, 6, 7, 8, 9),
        deployed(1, 2, 3, 4, 5, 6, 7, 8, replicas=2),
        route(1, aliases={"canary": "2"}),
        policy(
            "split",
            "m",
            {
                "key": "tenant",
                "salt": "s",
                "shares": {"3": 10_000_000},
                "shadow": {"version": "4", "slots": 5},
            },
        ),
        policy(
            "rule", "r", {"model_name": "m", "order": 1, "when": "true", "then": {"version": "5"}}
        ),
        policy("rollout", "m", {"version": "6"}),
        policy("route", "n", {"default": "1", "fallback": {"model_name": "m", "version": "7"}}),
    )
    new = versions.deploy(policies, "m", "9")
    assert new is not None
    assert [row.version for row in new.spec.versions] == ["1", "2", "3", "4", "5", "6", "7", "9"]
    assert new.spec.versions[-1].replicas == 2


def test_deploying_what_is_deployed_changes_nothing() -> None:
    """Promoting twice makes no second deployment."""
    assert versions.deploy(put(published(1), deployed(1)), "m", "1") is None


def test_the_first_deployment() -> None:
    """A model without deployment gets one with one replica."""
    new = versions.deploy(put(published(1)), "m", "1")
    assert new is not None
    assert [(row.version, row.replicas) for row in new.spec.versions] == [("1", 1)]


def test_a_route_keeps_its_aliases_and_fallback() -> None:
    """Only the default moves; there is nothing to do when it is right already."""
    before = put(route(1, aliases={"a": "1"}, fallback={"model_name": "n"}))
    after = versions.route_to(before, "m", "2")
    assert after == route(2, aliases={"a": "1"}, fallback={"model_name": "n"})
    assert versions.route_to(before, "m", "1") is None
    assert versions.route_to(put(), "m", "1") == route(1)


def test_an_alias_stands_in_a_route() -> None:
    """It is added or moved; without a route the refusal names the remedy."""
    assert versions.alias_to(put(route(1)), "m", "x", "2") == route(1, aliases={"x": "2"})
    assert versions.alias_to(put(route(1, aliases={"x": "2"})), "m", "x", "2") is None
    with pytest.raises(MeshError, match="promote a version first"):
        versions.alias_to(put(), "m", "x", "2")


def test_restoring_brings_everything_back_but_published_versions() -> None:
    """Changed policies return, new ones go, and versions published since stay."""
    then = put(published(1), deployed(1), route(1))
    now = put(published(1, 2), deployed(1, 2), route(2), policy("sla", "*", {}))
    changed, removed = versions.restore(now, then)
    assert changed == [deployed(1), route(1)]
    assert removed == [("sla", "*")]
    assert versions.restore(then, then) == ([], [])


def test_everything_that_traffic_can_reach() -> None:
    """Routes of all models, by model and version."""
    policies = put(published(1, 2), deployed(1, 2), route(1, aliases={"x": "2"}))
    assert versions.routed_versions(policies) == {("m", "1"), ("m", "2")}
