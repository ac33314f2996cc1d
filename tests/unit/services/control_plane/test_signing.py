"""Signing the contract over the socket: sign-offs are commits, and publishing asks for them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts import control, signing
from contracts.errors import MeshError
from contracts.pack import Manifest
from contracts.policies import Policy, PolicySet
from contracts.types import UNSET, Empty
from services.control_plane import versions
from services.control_plane.chain import Entry, canonical
from shared.packs import pack_digest, read_manifest

OTHER = "sha256:" + "1" * 64
TINY = "sha256:edd78ff137d597bd287ac15b05d7d80be641efe2312bb91cf2c1ba2bdd1ab43e"


async def page(plane: Any, **pack: Any) -> signing.ContractPage:
    """The page in force, or a pack's."""
    answer: signing.ContractPage = await plane.call("contracts", signing.ContractsRequest(**pack))
    return answer


async def sign(plane: Any, digest: str, role: str = "risk", **pack: Any) -> signing.ContractsSigned:
    """Sign a digest off."""
    signed: signing.ContractsSigned = await plane.call(
        "contracts_sign", signing.ContractsSign(digest=digest, role=role, author="ada", **pack)
    )
    return signed


async def apply(plane: Any, kind: str, name: str, **spec: Any) -> control.Applied:
    """Commit one policy."""
    policy = msgspec.convert({"kind": kind, "name": name, "spec": spec}, Policy)
    body = control.Apply(policies=[policy], author="me", reason="because")
    applied: control.Applied = await plane.call("apply", body)
    return applied


async def publish(plane: Any, digest: str) -> control.Published:
    """Publish a pack."""
    published: control.Published = await plane.call("publish", control.Publish(digest=digest))
    return published


async def test_a_sign_off_is_a_commit_of_the_chain(plane: Any) -> None:
    """It names digest, role and author, changes no policy, and the page shows it."""
    before = await page(plane)
    assert (before.signed, before.required) == ([], {})
    signed = await sign(plane, before.digest)
    assert (signed.version, signed.changed) == (2, True)
    (commit,) = (await plane.call("commits", control.CommitsRequest(after=1))).commits
    assert commit.signed == signing.Signature(digest=before.digest, role="risk")
    assert (commit.author, commit.changed, commit.commit) == ("ada", [], signed.commit)
    assert commit.reason == f"sign off {before.digest} as risk"
    assert (await plane.call("verify", Empty())).valid
    after = await page(plane)
    assert after.digest == before.digest
    assert after.policy_version == 2
    assert [(one.role, one.author, one.version) for one in after.signed] == [("risk", "ada", 2)]


async def test_the_same_twice_changes_nothing(plane: Any) -> None:
    """The first commit is named again; another role is another commit."""
    digest = (await page(plane)).digest
    first = await sign(plane, digest)
    again = await sign(plane, digest)
    assert (again.changed, again.version, again.commit) == (False, first.version, first.commit)
    assert (await sign(plane, digest, "law")).version == 3
    at_once = await asyncio.gather(*(sign(plane, digest, "data") for _ in range(3)))
    assert sorted(one.changed for one in at_once) == [False, False, True]
    assert {one.version for one in at_once} == {4}


async def test_another_digest_is_refused_with_both(plane: Any) -> None:
    """What is signed is what is in force: the refusal names it and what was received."""
    current = (await page(plane)).digest
    with pytest.raises(MeshError) as refusal:
        await sign(plane, OTHER)
    assert refusal.value.name == "VERSION_CONFLICT"
    assert current in refusal.value.message
    assert OTHER in refusal.value.message
    assert "mortise contracts show" in refusal.value.message
    assert (await page(plane)).policy_version == 1


async def test_publishing_needs_none_without_a_policy(
    plane: Any, make_pack: Callable[..., str]
) -> None:
    """Homes of today publish as before."""
    assert (await publish(plane, make_pack("second"))).version == "2"


async def test_publishing_asks_for_the_roles_of_the_policy(
    plane: Any, make_pack: Callable[..., str]
) -> None:
    """POLICY_REJECTED names roles, digest and command; with the sign-offs it is published."""
    pack = make_pack("another contract")
    await apply(plane, "sla", "*", sign_offs=["risk", "law"])
    wanted = (await page(plane, pack=pack)).digest
    assert wanted != (await page(plane)).digest
    with pytest.raises(MeshError) as refusal:
        await publish(plane, pack)
    assert refusal.value.name == "POLICY_REJECTED"
    assert refusal.value.details == {"digest": wanted, "roles": "law, risk", "pack": pack}
    line = f"mortise contracts sign --role law --digest {wanted} --pack {pack}"
    assert line in refusal.value.message
    with pytest.raises(MeshError, match="the page in force is"):
        await sign(plane, wanted, "law")
    await sign(plane, wanted, "law", pack=pack)
    with pytest.raises(MeshError, match=r"is not signed by risk;"):
        await publish(plane, pack)
    await sign(plane, wanted, "risk", pack=pack)
    assert (await publish(plane, pack)).version == "2"


async def test_a_pack_of_the_same_contract_needs_the_page_in_force(plane: Any) -> None:
    """What is published already asks for nothing new: its page is the one in force, and the
    command of a refusal names no pack."""
    await apply(plane, "sla", "tiny", sign_offs=["risk"])
    current = (await page(plane)).digest
    assert (await page(plane, pack=TINY)).digest == current
    await sign(plane, current, pack=TINY)
    assert [one.role for one in (await page(plane)).signed] == ["risk"]
    assert (await publish(plane, TINY)).version == "1"


async def test_a_changed_promise_is_signed_without_a_pack(
    plane: Any, home: Path, make_pack: Callable[..., str]
) -> None:
    """A retrained pack of the same contract: the page in force is what it needs."""
    pack = retrained(home, make_pack("other weights"))
    await apply(plane, "sla", "*", sign_offs=["risk"])
    with pytest.raises(MeshError) as refusal:
        await publish(plane, pack)
    current = (await page(plane)).digest
    assert refusal.value.details == {"digest": current, "roles": "risk"}
    assert refusal.value.message.endswith(f"contracts sign --role risk --digest {current}")
    await sign(plane, current)
    assert (await publish(plane, pack)).version == "2"
    await apply(plane, "sla", "*", sign_offs=["risk"], p99_ms=140.0)
    assert (await page(plane)).digest != current


def retrained(home: Path, pack: str) -> str:
    """A pack with tiny's contract and another seed."""
    manifest = read_manifest(home / "models", TINY)
    provenance = msgspec.structs.replace(manifest.provenance, seed=99)
    made: Manifest = msgspec.structs.replace(manifest, provenance=provenance)
    digest = pack_digest(made)
    folder = home / "models" / pack.removeprefix("sha256:")
    (folder / "manifest.json").write_bytes(msgspec.json.encode(made))
    folder.rename(folder.with_name(digest.removeprefix("sha256:")))
    return digest


async def test_no_other_way_leads_around_the_gate(
    plane: Any, make_pack: Callable[..., str]
) -> None:
    """A model or route policy that is applied is asked as publish and promote are; a commit that
    drops the roles beside it is asked for those of before."""
    second = make_pack("second")
    await publish(plane, second)
    await apply(plane, "deployment", "tiny", versions=[{"version": "1"}, {"version": "2"}])
    await apply(plane, "sla", "*", sign_offs=["risk"])
    rows = [{"version": str(n), "digest": d} for n, d in ((1, TINY), (2, second))]
    rows.append({"version": "3", "digest": make_pack("third")})
    for kind, spec in (("model", {"versions": rows}), ("route", {"default": "2"})):
        with pytest.raises(MeshError, match="is not signed by risk"):
            await apply(plane, kind, "tiny", **spec)
    both = [
        msgspec.convert({"kind": kind, "name": name, "spec": spec}, Policy)
        for kind, name, spec in (("sla", "*", {}), ("route", "tiny", {"default": "2"}))
    ]
    with pytest.raises(MeshError, match="is not signed by risk"):
        await plane.call("apply", control.Apply(policies=both, author="me", reason="r"))
    with pytest.raises(MeshError, match="is not signed by risk"):
        await plane.call("promote", control.Promote(model="tiny", version="2"))
    changed = msgspec.convert({"kind": "sla", "name": "*", "spec": {"p99_ms": 90.0}}, Policy)
    body = control.Apply(policies=[changed, both[1]], author="me", reason="r")
    with pytest.raises(MeshError, match="commit the other policies of this change first"):
        await plane.call("apply", body)


async def test_a_rollback_needs_no_sign_off_and_takes_none_back(
    plane: Any, make_pack: Callable[..., str]
) -> None:
    """What was in force returns at once, and what was signed stays signed."""
    await publish(plane, make_pack("second"))
    await apply(plane, "deployment", "tiny", versions=[{"version": "1"}, {"version": "2"}])
    await apply(plane, "route", "tiny", default="2")
    asked = await apply(plane, "sla", "*", sign_offs=["risk"])
    digest = (await page(plane)).digest
    await sign(plane, digest)
    await plane.call("rollback", control.Rollback(model="tiny"))
    answer = await plane.call("policies", control.PoliciesRequest())
    route = versions.route_of(PolicySet(version=1, policies=answer.policies), "tiny")
    assert route is not None
    assert route.spec.default == "1"
    assert (await page(plane)).signed == []
    await plane.call("rollback", control.Rollback(to=asked.version))
    after = await page(plane)
    assert after.digest == digest
    assert [one.role for one in after.signed] == ["risk"]


async def test_sign_offs_survive_a_restart(start: Callable[..., Any]) -> None:
    """They are commits: the next process finds them in the log."""
    async with start() as plane:
        digest = (await page(plane)).digest
        await sign(plane, digest)
    async with start() as plane:
        again = await page(plane)
        assert again.digest == digest
        assert [one.role for one in again.signed] == ["risk"]
        assert not (await sign(plane, digest)).changed


async def test_a_home_may_begin_with_roles(start: Callable[..., Any], home: Path) -> None:
    """policies.toml is in force before anybody can sign."""
    file = home / "policies.toml"
    file.write_text(
        file.read_text() + '\n[[policy]]\nkind = "sla"\nname = "*"\nspec = {sign_offs = ["risk"]}\n'
    )
    async with start() as plane:
        assert (await page(plane)).required == {"*": ["risk"]}


async def test_a_page_without_one_of_its_packs_is_refused(plane: Any, home: Path) -> None:
    """PACK_INVALID names it: what cannot be read cannot be signed."""
    (home / "models" / TINY.removeprefix("sha256:")).rename(home / "gone")
    with pytest.raises(MeshError, match=TINY.removeprefix("sha256:")) as refusal:
        await page(plane)
    assert refusal.value.name == "PACK_INVALID"


def test_entries_without_a_sign_off_are_written_as_before() -> None:
    """Their canonical bytes have no field that an older release does not know."""
    entry = Entry(
        version=1, previous=OTHER, at="2013-01-01T00:00:00Z", author="a", reason="r",
        peer_uid=0, changed=[], removed=[], policy=OTHER,
    )  # fmt: skip
    assert entry.signed is UNSET
    assert b"signed" not in canonical(entry)
