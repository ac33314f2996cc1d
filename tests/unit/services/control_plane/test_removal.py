"""Policies taken out of force again: by `apply` with `remove`."""

from typing import Any

import msgspec
import pytest

from contracts import control
from contracts.errors import MeshError
from contracts.policies import Policy, PolicySet
from contracts.types import Empty
from services.control_plane.versions import put_in_and_out

SPLIT = {"key": "trace", "salt": "s", "shares": {"1": 10_000_000}}


def policy(kind: str, name: str, spec: dict[str, Any]) -> Any:
    """A policy from its written form."""
    return msgspec.convert({"kind": kind, "name": name, "spec": spec}, type=Policy)


def removal(*keys: tuple[str, str], put: tuple[Any, ...] = ()) -> control.Apply:
    """A request that takes these out."""
    remove = [control.PolicyKey(kind=kind, name=name) for kind, name in keys]
    return control.Apply(policies=list(put), remove=remove, author="me", reason="done")


async def names_in_force(plane: Any) -> set[tuple[str, str]]:
    """(kind, name) of every policy."""
    answer = await plane.call("policies", control.PoliciesRequest())
    return {(msgspec.to_builtins(one)["kind"], one.name) for one in answer.policies}


async def test_a_split_can_be_removed(plane: Any) -> None:
    """One commit, which says so; the chain stays whole."""
    await plane.call("apply", removal(put=(policy("split", "tiny", SPLIT),)))
    assert ("split", "tiny") in await names_in_force(plane)
    applied = await plane.call("apply", removal(("split", "tiny")))
    assert applied.changed
    assert ("split", "tiny") not in await names_in_force(plane)
    (last,) = (await plane.call("commits", control.CommitsRequest(after=2))).commits
    assert (last.version, last.removed, last.changed) == (3, [("split", "tiny")], [])
    assert (await plane.call("verify", Empty())).valid


async def test_what_is_not_in_force_cannot_be_removed(plane: Any) -> None:
    """It is named, with what there is of its kind; nothing is committed."""
    with pytest.raises(MeshError, match=r"split tiny: only .* in force of this kind: none") as no:
        await plane.call("apply", removal(("split", "tiny")))
    assert no.value.name == "POLICY_INVALID"
    assert (await plane.call("policies", control.PoliciesRequest())).version == 1


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (("route", "tiny"), "route tiny: a model with a split or a rule has a route.*split tiny"),
        (("deployment", "tiny"), "route tiny: a route names deployed versions"),
        (("model", "tiny"), "versions only grow"),
    ],
)
async def test_what_another_policy_needs_stays(
    plane: Any, key: tuple[str, str], words: str
) -> None:
    """The set that results is checked like any other."""
    await plane.call("apply", removal(put=(policy("split", "tiny", SPLIT),)))
    with pytest.raises(MeshError, match=words) as refusal:
        await plane.call("apply", removal(key))
    assert refusal.value.name == "POLICY_INVALID"


async def test_a_route_goes_together_with_its_split(plane: Any) -> None:
    """In one commit nothing is left that needs it."""
    await plane.call("apply", removal(put=(policy("split", "tiny", SPLIT),)))
    await plane.call("apply", removal(("split", "tiny"), ("route", "tiny")))
    assert not {("split", "tiny"), ("route", "tiny")} & await names_in_force(plane)


async def test_a_removed_route_can_be_rolled_back(plane: Any) -> None:
    """It comes back as it was."""
    await plane.call("apply", removal(("route", "tiny")))
    await plane.call("rollback", control.Rollback(model="tiny"))
    assert ("route", "tiny") in await names_in_force(plane)


async def test_an_apply_of_nothing_is_refused(plane: Any) -> None:
    """Neither list names anything."""
    with pytest.raises(MeshError, match="received neither") as refusal:
        await plane.call("apply", removal())
    assert refusal.value.name == "INVALID_REQUEST"


def test_a_commit_names_a_removed_policy_once() -> None:
    """Not twice, and not put in as well."""
    split = policy("split", "tiny", SPLIT)
    before, key = PolicySet(version=1, policies=[split]), ("split", "tiny")
    with pytest.raises(MeshError, match="again in remove"):
        put_in_and_out(before, [], [key, key])
    with pytest.raises(MeshError, match="in policies"):
        put_in_and_out(before, [split], [key])
