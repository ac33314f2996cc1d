"""Which version answers."""

import hashlib
from collections import Counter
from typing import Any

import pytest

from contracts.errors import MeshError
from contracts.pack import TensorContract
from contracts.policies import (
    SLOTS,
    Fallback,
    LimitsPolicy,
    LimitsSpec,
    Policy,
    PriorityPolicy,
    PrioritySpec,
    RolloutPolicy,
    RolloutSpec,
    RulePolicy,
    RuleSpec,
    Shadow,
    SplitPolicy,
    SplitSpec,
    Then,
)
from services.orchestrator.plan import ModelPlan
from services.orchestrator.routing import RouteTable, unsupported
from tests.unit.services.orchestrator.making import (
    TRACE_ID,
    contract,
    digest,
    no_breakers,
    plan_for,
    plan_of,
    policy_set,
    published,
    request,
)


class Replicas:
    """Says which (name, version) are ready or expected."""

    def __init__(self, *ready: str, expected: tuple[str, ...] = ()) -> None:
        pairs = [one.split(":") for one in ready]
        self.ready = [(name, version, digest(int(version))) for name, version in pairs]
        self.expected = expected

    def is_expected(self, plan: ModelPlan) -> bool:
        """See `routing.Readiness`."""
        return f"{plan.name}:{plan.version}" in self.expected


EVERYTHING = Replicas("tiny:1", "tiny:2", "tiny:3", "small:1")


def table(*policies: Policy) -> RouteTable:
    """The routes of these policies."""
    return RouteTable(policy_set(*policies, version=7), plan_of)


def chosen(routes: RouteTable, replicas: Replicas = EVERYTHING, **body: object) -> tuple[str, str]:
    """`model:version` and the variant."""
    choice = routes.choose(request(**body), TRACE_ID, replicas, no_breakers())
    return f"{choice.plan.name}:{choice.plan.version}", choice.variant


def refusal(routes: RouteTable, replicas: Replicas = EVERYTHING, **body: object) -> str:
    """The error's name."""
    with pytest.raises(MeshError) as caught:
        routes.choose(request(**body), TRACE_ID, replicas, no_breakers())
    return caught.value.name


def test_default_alias_and_pinned_version() -> None:
    """The variant says why a version answers."""
    routes = table(*published("tiny", "1", "2", "3", aliases={"next": "2"}))
    assert chosen(routes) == ("tiny:1", "default")
    assert chosen(routes, model_version="next") == ("tiny:2", "alias")
    assert chosen(routes, model_version="3") == ("tiny:3", "pinned")


@pytest.mark.parametrize("name", ["no body", "9", "", "größe", "a/b", "x" * 127 + "\0"])
def test_what_cannot_be_a_name_is_an_invalid_request(name: str) -> None:
    """The contract's pattern is asked here, when nothing has the name; with fields that msgspec
    judges it is refused before."""
    assert refusal(table(*published("tiny", "1")), model_name=name) == "INVALID_REQUEST"


def test_what_does_not_exist_is_unknown_and_what_is_not_there_is_not_ready() -> None:
    """MODEL_UNKNOWN cannot be retried, MODEL_NOT_READY can."""
    model, deployment, route = published("tiny", "1", "2", default="1")
    routes = table(model, deployment, route)
    assert refusal(routes, model_name="nobody") == "MODEL_UNKNOWN"
    assert refusal(routes, model_version="9") == "MODEL_UNKNOWN"
    assert refusal(routes, model_version="alias") == "MODEL_UNKNOWN"
    assert refusal(routes, Replicas()) == "MODEL_NOT_READY"
    assert refusal(table(model, deployment)) == "MODEL_NOT_READY"
    assert refusal(table(model, route)) == "MODEL_NOT_READY"


def test_a_version_that_is_coming_back_is_waited_for() -> None:
    """Its runtime restarts: the request queues instead of failing."""
    routes = table(*published("tiny", "1"))
    assert chosen(routes, Replicas(expected=("tiny:1",))) == ("tiny:1", "default")


def test_the_declared_fallback_answers_when_it_alone_is_ready() -> None:
    """With an explicit version or its own default; never for a pinned version."""
    for fallback in (Fallback(model_name="small", version="1"), Fallback(model_name="small")):
        routes = table(*published("tiny", "1", fallback=fallback), *published("small", "1"))
        only_small = Replicas("small:1", expected=("tiny:1",))
        assert chosen(routes, only_small) == ("small:1", "fallback")
        assert chosen(routes) == ("tiny:1", "default")
        assert refusal(routes, Replicas("small:1"), model_version="1") == "MODEL_NOT_READY"
        assert refusal(routes, Replicas()) == "MODEL_NOT_READY"


def split(**shares: int) -> SplitPolicy:
    """Shares v1, v2, … in slots, by entity."""
    spec = SplitSpec(key="entity", salt="s", shares={k[1:]: v for k, v in shares.items()})
    return SplitPolicy(name="tiny", spec=spec)


def shares_of(policy: SplitPolicy, keys: int = 2_000) -> dict[str, str]:
    """Which version each entity gets."""
    routes = table(*published("tiny", "1", "2"), policy)
    found = {}
    for number in range(keys):
        version, variant = chosen(routes, entity=f"e{number}")
        assert variant == "split"
        found[f"e{number}"] = version
    return found


def test_a_split_is_sticky_and_keeps_its_shares() -> None:
    """30 % within the error of 2,000 keys; the same key always gets the same version."""
    policy = split(v1=7 * SLOTS // 10, v2=3 * SLOTS // 10)
    found = shares_of(policy)
    assert found == shares_of(policy)
    assert 500 < Counter(found.values())["tiny:2"] < 700


def test_moving_a_weight_moves_only_that_share_of_the_keys() -> None:
    """From 10 % to 20 %: nobody who had version 2 loses it."""
    before = shares_of(split(v1=9 * SLOTS // 10, v2=SLOTS // 10))
    after = shares_of(split(v1=8 * SLOTS // 10, v2=2 * SLOTS // 10))
    moved = [key for key in before if before[key] != after[key]]
    assert all(after[key] == "tiny:2" for key in moved)
    assert 120 < len(moved) < 280


def test_the_whole_range_of_slots_is_covered() -> None:
    """A share of everything takes every key; an empty share takes none."""
    assert set(shares_of(split(v1=0, v2=SLOTS), 200).values()) == {"tiny:2"}
    assert set(shares_of(split(v1=SLOTS, v2=0), 200).values()) == {"tiny:1"}


def test_the_slot_is_the_documented_hash() -> None:
    """Another implementation can compute the assignment."""
    digest = hashlib.blake2b(b"s\ne1", digest_size=8).digest()
    slot = int.from_bytes(digest, "big") % SLOTS
    assert shares_of(split(v1=slot, v2=SLOTS - slot), 2)["e1"] == "tiny:2"
    assert shares_of(split(v1=slot + 1, v2=SLOTS - slot - 1), 2)["e1"] == "tiny:1"


def test_an_explicit_version_is_not_split() -> None:
    """A split concerns requests that leave the choice to us."""
    routes = table(*published("tiny", "1", "2"), split(v1=0, v2=SLOTS))
    assert chosen(routes, model_version="1") == ("tiny:1", "pinned")


def rule(name: str, when: str, order: int = 0, **then: Any) -> RulePolicy:
    """A rule of `tiny`."""
    spec = RuleSpec(model_name="tiny", order=order, when=when, then=Then(**then))
    return RulePolicy(name=name, spec=spec)


def shadowed(slots: int, shadow: str = "2") -> SplitPolicy:
    """Everything to version 1, copies of so many slots to the shadow."""
    spec = SplitSpec(
        key="entity",
        salt="s",
        shares={"1": SLOTS},
        shadow=Shadow(version=shadow, slots=slots),
    )
    return SplitPolicy(name="tiny", spec=spec)


def test_a_share_of_the_split_s_requests_is_copied() -> None:
    """About the share that the policy names, whichever version they go to; pinned ones never."""
    routes = table(*published("tiny", "1", "2"), shadowed(SLOTS // 4))
    choices = [
        routes.choose(request(entity=f"e{n}"), TRACE_ID, EVERYTHING, no_breakers())
        for n in range(2_000)
    ]
    shadows = [choice.shadow for choice in choices if choice.shadow is not None]
    assert {plan.version for plan in shadows} == {"2"}
    assert 400 < len(shadows) < 600
    assert {choice.plan.version for choice in choices} == {"1"}
    everything = table(*published("tiny", "1", "2"), shadowed(SLOTS))
    pinned = request(entity="e1", model_version="1")
    assert everything.choose(pinned, TRACE_ID, EVERYTHING, no_breakers()).shadow is None


def test_a_shadow_that_takes_other_inputs_is_a_fault() -> None:
    """It could not be given the requests of the others."""

    def other(name: str, version: str, number: str) -> ModelPlan:
        if version != "2":
            return plan_of(name, version, number)
        wider = [TensorContract(name="x", datatype="FP32", shape=[-1, 3])]
        return plan_for(contract(inputs=wider), "2", 2)

    routes = RouteTable(policy_set(*published("tiny", "1", "2"), shadowed(1)), other)
    assert routes.faults == [
        "split tiny: the shadow 2 takes other inputs than 1, whose requests it would get"
    ]


def test_a_rule_stands_before_the_split_and_behind_an_explicit_version() -> None:
    """The variant says it; who asked for a version gets that one."""
    routes = table(
        *published("tiny", "1", "2", "3", aliases={"next": "3"}),
        split(v1=SLOTS),
        rule("r", "tenant_id == 'gold'", version="2"),
    )
    assert chosen(routes, tenant_id="gold") == ("tiny:2", "rule")
    assert chosen(routes, tenant_id="gold", model_version="1") == ("tiny:1", "pinned")
    assert chosen(routes, tenant_id="gold", model_version="next") == ("tiny:3", "alias")
    assert chosen(routes) == ("tiny:1", "split")


def test_risk_levels_and_refusals_of_rules_hold_for_every_request() -> None:
    """For an explicit version too: they are about the request, not about where it goes."""
    routes = table(
        *published("tiny", "1", "2"),
        rule("r", "tenant_id == 'gold'", risk_level=1),
        rule("n", "tenant_id == 'gone'", refuse="no contract any more"),
    )
    for version in ({}, {"model_version": "2"}):
        body = request(tenant_id="gold", **version)
        assert routes.choose(body, TRACE_ID, EVERYTHING, no_breakers()).risk_level == 1
        assert refusal(routes, tenant_id="gone", **version) == "RULE_REFUSED"
    assert routes.choose(request(), TRACE_ID, EVERYTHING, no_breakers()).risk_level == 0


def test_a_rule_s_version_that_is_not_ready_gives_way_to_the_fallback() -> None:
    """As a default does."""
    fallback = Fallback(model_name="small")
    routes = table(
        *published("tiny", "1", "2", fallback=fallback),
        *published("small", "1"),
        rule("r", "true", version="2"),
    )
    assert chosen(routes, Replicas("tiny:1", "small:1")) == ("small:1", "fallback")


def test_a_rule_that_cannot_be_read_is_a_fault() -> None:
    """The commit is refused here too, should it come past the control plane."""
    routes = table(*published("tiny", "1"), rule("r", "risk_level", version="1"))
    assert routes.faults == ["rule r: at 1: a condition is expected, this is a number"]


def test_the_version_and_digest_of_the_set_are_the_table_s() -> None:
    """Requests name both; a set with other contents has another digest."""
    routes = table(*published("tiny", "1"))
    assert routes.version == 7
    assert routes.digest == policy_set(*published("tiny", "1")).digest()
    assert routes.digest != table(*published("tiny", "1", "2")).digest


def test_a_version_that_cannot_be_compiled_is_a_fault_and_the_others_serve() -> None:
    """A missing pack takes one version out, not the mesh."""

    def broken(name: str, version: str, digest: str) -> ModelPlan:
        if version == "2":
            raise MeshError("PACK_INVALID", "gone")
        return plan_of(name, version, digest)

    routes = RouteTable(policy_set(*published("tiny", "1", "2")), broken)
    assert routes.faults == ["tiny 2: gone"]
    assert chosen(routes) == ("tiny:1", "default")
    assert refusal(routes, model_version="2") == "MODEL_NOT_READY"


def test_what_routes_reach_is_known() -> None:
    """Default, aliases and split, once each."""
    routes = table(*published("tiny", "1", "2", "3", aliases={"a": "3"}), split(v1=SLOTS - 1, v2=1))
    assert [plan.version for plan in routes.routed()] == ["1", "2", "3"]


def test_a_policy_that_is_not_enforced_is_refused_never_ignored() -> None:
    """The commit fails, naming what cannot be done yet."""
    rollout = RolloutPolicy(name="tiny", spec=RolloutSpec(version="2"))
    assert "rollout tiny: steps are not taken yet" in (unsupported(rollout) or "")


def test_enforced_policies_are_taken() -> None:
    """Routes, splits, shadows, rules, priorities, limits."""
    for policy in (
        *published("tiny", "1"),
        split(v1=SLOTS),
        shadowed(1),
        PriorityPolicy(spec=PrioritySpec(reserved_replicas={"1": 1})),
        LimitsPolicy(name="t", spec=LimitsSpec(requests_per_s=1.0)),
        rule("r", "true", version="1"),
    ):
        assert unsupported(policy) is None
