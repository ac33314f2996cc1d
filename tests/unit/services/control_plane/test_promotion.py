"""publish, promote and rollback over the socket, with runtimes that load what they are told."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from contracts import control
from contracts.errors import MeshError
from contracts.inference import ModelRow, Models
from contracts.methods import METHODS
from contracts.pack import LoadedModel
from contracts.policies import DeploymentPolicy, Policy, PolicySet
from contracts.types import UNSET, Empty
from services.control_plane import promotion, versions
from shared.access import Access
from shared.policy_follower import PolicyFollower, ReportParts
from shared.rpc.server import Call, Server

NEARLY_ALL_S = METHODS["control_plane"]["promote"].budget.timeout_ms / 1_000 - 0.3
"""Of a promotion's time-out: 0.3 s are left for waiting."""


class Loads:
    """What a runtime says of the versions it is to hold; `says` maps version → state."""

    def __init__(self, **says: str) -> None:
        self.says = says

    def __call__(self, policies: PolicySet) -> ReportParts:
        """Its report."""
        models = [
            LoadedModel(
                name="tiny",
                version=row.version,
                digest=versions.published_digest(policies, "tiny", row.version),
                state=self.says.get(f"v{row.version}", "ready"),  # type: ignore[arg-type]
                reason="no memory" if self.says.get(f"v{row.version}") == "failed" else UNSET,
            )
            for row in _deployed(policies)
        ]
        return ReportParts(ready=True, models=models)


def _deployed(policies: PolicySet) -> list[Any]:
    deployment = versions.deployment_of(policies, "tiny")
    return list(deployment.spec.versions) if isinstance(deployment, DeploymentPolicy) else []


async def runtime(plane: Any, loads: Loads, **options: Any) -> PolicyFollower:
    """A runtime that follows and reports."""
    follower: PolicyFollower = await plane.follow("model_runtime", report=loads, **options)
    return follower


async def publish(plane: Any, digest: str, **fields: Any) -> control.Published:
    """Publish a pack."""
    published: control.Published = await plane.call(
        "publish", control.Publish(digest=digest, **fields)
    )
    return published


async def in_force(plane: Any) -> PolicySet:
    """The policies now."""
    answer = await plane.call("policies", control.PoliciesRequest())
    return PolicySet(version=answer.version, policies=answer.policies)


def default(policies: PolicySet) -> str:
    """Where tiny's route leads."""
    route = versions.route_of(policies, "tiny")
    assert route is not None
    return route.spec.default


async def test_a_pack_gets_the_next_version_once(plane: Any, make_pack: Callable[..., str]) -> None:
    """The same pack twice is the same version, and makes no second commit."""
    digest = make_pack("second")
    first = await publish(plane, digest)
    assert (first.model, first.version, first.digest) == ("tiny", "2", digest)
    assert await publish(plane, digest) == first
    assert (await in_force(plane)).version == 2
    assert (await publish(plane, make_pack("third"))).version == "3"
    assert (await publish(plane, make_pack("another model", "minute"))).version == "1"


async def test_publishing_what_is_not_staged_is_refused(plane: Any) -> None:
    """PACK_INVALID; nothing is committed."""
    with pytest.raises(MeshError) as refusal:
        await publish(plane, "sha256:" + "1" * 64)
    assert refusal.value.name == "PACK_INVALID"
    assert (await in_force(plane)).version == 1


async def test_promotion_deploys_waits_and_routes(
    plane: Any, make_pack: Callable[..., str], until: Any
) -> None:
    """Two commits in this order, progress in between; the version before stays loaded."""
    loads = Loads(v2="loading")
    follower = await runtime(plane, loads)
    await publish(plane, make_pack("second"))
    steps: list[control.PromoteStep] = []
    call = asyncio.ensure_future(
        plane.call("promote", control.Promote(model="tiny", version="2"), on_item=steps.append)
    )
    await until(lambda: any("loads" in str(step.detail) for step in steps))
    assert default(await in_force(plane)) == "1"
    loads.says = {}
    follower.report_now()
    promoted = await call
    assert promoted == control.Promoted(
        model="tiny", version="2", policy_version=4, from_version="1"
    )
    assert steps[0].step == "deploying"
    assert [step.step for step in steps][-3:] == ["ready", "routing", "active"]
    policies = await in_force(plane)
    assert default(policies) == "2"
    assert [row.version for row in _deployed(policies)] == ["1", "2"]


async def test_the_route_waits_until_the_orchestrator_sees_the_version(
    plane: Any, make_pack: Callable[..., str], until: Any
) -> None:
    """Runtimes are ready, the orchestrator does not know yet: a route now would refuse requests."""
    states = ["published", "loading", "ready"]
    seen: list[str] = []

    def models(_call: Call) -> Models:
        seen.append(states.pop(0) if len(states) > 1 else states[0])
        digest = "sha256:" + "0" * 64
        row = ModelRow(
            name="tiny",
            version="2",
            aliases=[],
            task="tensor",
            state=seen[-1],  # type: ignore[arg-type]
            digest=digest,
            contract=digest,
            replicas=1,
        )
        return Models(models=[row])

    handlers: dict[str, Callable[[Call], Any]] = dict.fromkeys(
        set(METHODS["orchestrator"]) - {"ping", "describe"}, lambda _call: Empty()
    )
    server = Server(
        "orchestrator",
        {**handlers, "models": models},
        instance="orchestrator.0-x",
        access=Access.owner(),
    )
    await server.start_path(plane.home / ".mortise" / "run" / "orchestrator.sock")
    await until(lambda: plane.service._orchestrator.connected)
    await runtime(plane, Loads())
    await publish(plane, make_pack("second"))
    await plane.call("promote", control.Promote(model="tiny", version="2"))
    assert seen == ["published", "loading", "ready"]
    assert default(await in_force(plane)) == "2"
    await server.drain(0.0)


async def test_promoting_again_changes_nothing(plane: Any) -> None:
    """What is routed and ready answers at once, without a commit."""
    await runtime(plane, Loads())
    promoted = await plane.call("promote", control.Promote(model="tiny", version="1"))
    assert promoted.policy_version == 1


async def test_a_failed_load_leaves_the_old_serving(
    plane: Any, make_pack: Callable[..., str]
) -> None:
    """MODEL_NOT_READY names instance and reason; the deployment is taken back."""
    await runtime(plane, Loads(v2="failed"))
    await publish(plane, make_pack("second"))
    with pytest.raises(MeshError, match=r"model_runtime\.0-\w+: tiny 2: no memory") as refusal:
        await plane.call("promote", control.Promote(model="tiny", version="2"))
    assert refusal.value.name == "MODEL_NOT_READY"
    policies = await in_force(plane)
    assert default(policies) == "1"
    assert [row.version for row in _deployed(policies)] == ["1"]
    last = (await plane.call("commits", control.CommitsRequest(after=3))).commits[-1]
    assert last.reason.startswith("taken back: MODEL_NOT_READY")


async def test_a_refused_route_takes_the_deployment_back(
    plane: Any, make_pack: Callable[..., str]
) -> None:
    """The last step fails as well as any other: an instance that does not take the route leaves
    things as they were."""
    await runtime(plane, Loads())
    await plane.follow(
        "orchestrator", check=lambda policies: "not this" if default(policies) == "2" else None
    )
    await publish(plane, make_pack("second"))
    with pytest.raises(MeshError, match="not this") as refusal:
        await plane.call("promote", control.Promote(model="tiny", version="2"))
    assert refusal.value.name == "POLICY_REJECTED"
    policies = await in_force(plane)
    assert default(policies) == "1"
    assert [row.version for row in _deployed(policies)] == ["1"]


async def test_a_load_that_takes_too_long_is_taken_back(
    plane: Any, make_pack: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the caller's deadline it hears which instance was still loading."""
    monkeypatch.setattr(promotion, "take_back_s", NEARLY_ALL_S)
    await runtime(plane, Loads(v2="loading"))
    await publish(plane, make_pack("second"))
    with pytest.raises(MeshError, match=r"was not ready in time.*loads tiny 2"):
        await plane.call("promote", control.Promote(model="tiny", version="2"))
    assert [row.version for row in _deployed(await in_force(plane))] == ["1"]


async def test_a_caller_that_leaves_takes_the_deployment_with_it(
    plane: Any, make_pack: Callable[..., str], until: Any
) -> None:
    """Ctrl-C while a version loads: nothing half promoted stays."""
    await runtime(plane, Loads(v2="loading"))
    await publish(plane, make_pack("second"))
    steps: list[control.PromoteStep] = []
    call = asyncio.ensure_future(
        plane.call("promote", control.Promote(model="tiny", version="2"), on_item=steps.append)
    )
    await until(lambda: any(step.step == "loading" for step in steps))
    call.cancel()
    head = plane.service._distributor
    await until(lambda: head.head.policies.version == 4)
    assert [row.version for row in _deployed(head.head.policies)] == ["1"]


async def test_without_a_runtime_nothing_is_promoted(
    plane: Any, make_pack: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has it ready, so the route stays."""
    monkeypatch.setattr(promotion, "take_back_s", NEARLY_ALL_S)
    await publish(plane, make_pack("second"))
    with pytest.raises(MeshError, match=r"model_runtime\.0: has not taken the deployment yet"):
        await plane.call("promote", control.Promote(model="tiny", version="2"))
    assert default(await in_force(plane)) == "1"


@pytest.mark.parametrize(("model", "version"), [("tiny", "7"), ("nobody", "1")])
async def test_promoting_what_is_not_published(plane: Any, model: str, version: str) -> None:
    """MODEL_UNKNOWN names the published versions."""
    with pytest.raises(MeshError, match="is not published") as refusal:
        await plane.call("promote", control.Promote(model=model, version=version))
    assert refusal.value.name == "MODEL_UNKNOWN"


async def test_a_promotion_waits_for_a_successor(
    plane: Any, make_pack: Callable[..., str], until: Any
) -> None:
    """A runtime that just died would reject the commit; its successor comes, and it goes on."""
    await publish(plane, make_pack("second"))
    puppet = await plane.puppet("model_runtime", "model_runtime.0-dies")
    await puppet.client.close()
    await until(lambda: not plane.service._distributor._calls)
    call = asyncio.ensure_future(plane.call("promote", control.Promote(model="tiny", version="2")))
    await asyncio.sleep(0.01)
    await runtime(plane, Loads())
    assert (await call).version == "2"


async def test_publishing_with_an_alias_brings_the_version_under_it(
    plane: Any, make_pack: Callable[..., str]
) -> None:
    """Deployed, ready, then named in the route; the default stays."""
    await runtime(plane, Loads())
    published = await publish(plane, make_pack("second"), alias="canary")
    policies = await in_force(plane)
    route = versions.route_of(policies, "tiny")
    assert route is not None
    assert (route.spec.default, route.spec.aliases) == ("1", {"canary": published.version})


async def test_rolling_a_route_back(plane: Any, make_pack: Callable[..., str]) -> None:
    """The route before the last change, as a new commit; the version is still loaded."""
    await runtime(plane, Loads())
    await publish(plane, make_pack("second"))
    await plane.call("promote", control.Promote(model="tiny", version="2"))
    rolled = await plane.call("rollback", control.Rollback(model="tiny"))
    policies = await in_force(plane)
    assert (policies.version, default(policies)) == (rolled.version, "1")
    (last,) = (await plane.call("commits", control.CommitsRequest(after=4))).commits
    assert (last.commit, last.reason) == (rolled.commit, "rollback of tiny")


async def test_a_rollback_without_a_past_is_refused(plane: Any) -> None:
    """It says what is missing."""
    with pytest.raises(MeshError, match="needs an earlier route"):
        await plane.call("rollback", control.Rollback(model="tiny"))
    with pytest.raises(MeshError, match="nobody never had a route") as refusal:
        await plane.call("rollback", control.Rollback(model="nobody"))
    assert refusal.value.name == "MODEL_UNKNOWN"
    for body in (control.Rollback(), control.Rollback(model="tiny", to=1)):
        with pytest.raises(MeshError, match="exactly one of model and to"):
            await plane.call("rollback", body)
    with pytest.raises(MeshError, match="version 9 does not exist"):
        await plane.call("rollback", control.Rollback(to=9))


async def test_rolling_the_whole_state_back(plane: Any, make_pack: Callable[..., str]) -> None:
    """Versions that the old state routes are loaded first; published versions stay; the old
    policies are in force again in one commit."""
    await runtime(plane, Loads())
    for note in ("second", "third"):
        published = await publish(plane, make_pack(note))
        await plane.call("promote", control.Promote(model="tiny", version=published.version))
    assert [row.version for row in _deployed(await in_force(plane))] == ["2", "3"]
    await plane.call("rollback", control.Rollback(to=1))
    policies = await in_force(plane)
    assert default(policies) == "1"
    assert [row.version for row in _deployed(policies)] == ["1"]
    assert [row.version for row in versions.versions_of(policies, "tiny")] == ["1", "2", "3"]
    before = policies.version
    again = await plane.call("rollback", control.Rollback(to=before))
    assert again.version == before
    assert (await plane.call("verify", Empty())).valid


SPLIT = {"key": "trace", "salt": "s", "shares": {"1": 9_000_000, "2": 1_000_000}}
RULE = {"model_name": "tiny", "order": 1, "when": "risk_level == 1", "then": {"version": "2"}}


def policy(kind: str, name: str, spec: dict[str, Any]) -> Any:
    """A policy from its written form."""
    return msgspec.convert({"kind": kind, "name": name, "spec": spec}, type=Policy)


async def test_a_split_that_goes_on_is_named(plane: Any, make_pack: Callable[..., str]) -> None:
    """A promotion and a rollback say which split and rule send requests elsewhere, and how many."""
    await runtime(plane, Loads())
    await publish(plane, make_pack("second"))
    first = await plane.call("promote", control.Promote(model="tiny", version="2"))
    assert (first.from_version, first.diverted_by) == ("1", [])
    both = [policy("split", "tiny", SPLIT), policy("rule", "first", RULE)]
    await plane.call("apply", control.Apply(policies=both, author="me", reason="r"))
    again = await plane.call("promote", control.Promote(model="tiny", version="2"))
    assert again.from_version is UNSET, "the route led there already"
    (split,) = again.diverted_by
    assert (split.kind, split.name, split.detail) == ("split", "tiny", "90 % to version 1")
    rolled = await plane.call("rollback", control.Rollback(model="tiny"))
    found = {(one.kind, one.name): one.detail for one in rolled.diverted_by}
    assert found == {
        ("split", "tiny"): "10 % to version 2",
        ("rule", "first"): "to version 2 when risk_level == 1",
    }


async def test_a_second_rollback_goes_forward_again(
    plane: Any, make_pack: Callable[..., str]
) -> None:
    """Each says from which version to which the route went."""
    await runtime(plane, Loads())
    await publish(plane, make_pack("second"))
    await plane.call("promote", control.Promote(model="tiny", version="2"))
    for before, after in (("2", "1"), ("1", "2")):
        rolled = await plane.call("rollback", control.Rollback(model="tiny"))
        assert (rolled.model, rolled.from_version, rolled.to_version) == ("tiny", before, after)
