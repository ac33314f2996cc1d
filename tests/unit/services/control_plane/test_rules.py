"""Each cross rule: what it accepts, and its refusal with rule, received and remedy."""

from typing import Any

import msgspec
import pytest

from contracts.errors import MeshError
from contracts.limits import policy_set_max
from contracts.pack import Architecture, Manifest, ModelContract, Provenance
from contracts.policies import Policy, PolicySet
from services.control_plane.candidate import Surroundings, packs_needed
from services.control_plane.rules import RULES, check, check_changes, violations, violations_max

EMPTY = PolicySet(version=0, policies=[])


def digest(number: int) -> str:
    """A digest that stands for pack `number`."""
    return f"sha256:{number:064x}"


def manifest(model: str) -> Manifest:
    """A manifest that names a model."""
    return Manifest(
        format=1,
        contract=ModelContract(name=model, task="tensor", inputs=[], outputs=[]),
        architecture=Architecture(name="affine"),
        files=[],
        tensors=[],
        weights=digest(0),
        provenance=Provenance(code=digest(0)),
    )


HOME = Surroundings({digest(n): manifest("m" if n < 10 else "other") for n in range(20)}, 2, 2)


def policy(kind: str, name: str, spec: dict[str, Any]) -> Policy:
    """A policy from its plain form."""
    return msgspec.convert({"kind": kind, "name": name, "spec": spec}, Policy)


def model(*versions: int, name: str = "m", first: int = 0) -> Policy:
    """A model with these versions; version n is pack first + n."""
    rows = [{"version": str(n), "digest": digest(first + n)} for n in versions]
    return policy("model", name, {"versions": rows})


def deployed(*versions: int, name: str = "m", replicas: int = 1) -> Policy:
    """A deployment of these versions."""
    rows = [{"version": str(n), "replicas": replicas} for n in versions]
    return policy("deployment", name, {"versions": rows})


def route(default: int, name: str = "m", **spec: Any) -> Policy:
    """A route to a version."""
    return policy("route", name, {"default": str(default), **spec})


def put(*policies: Policy, version: int = 1) -> PolicySet:
    """A policy set."""
    return PolicySet(version=version, policies=list(policies))


def broken(after: PolicySet, before: PolicySet = EMPTY, home: Surroundings = HOME) -> list[str]:
    """The refusals."""
    return [str(violation) for violation in violations(before, after, home)]


GOOD = [
    model(1, 2),
    model(1, name="other", first=10),
    deployed(1, 2),
    deployed(1, name="other"),
    route(1, name="other"),
    route(1, aliases={"canary": "2"}, fallback={"model_name": "other"}),
    policy(
        "split",
        "m",
        {"key": "entity", "salt": "s", "shares": {"1": 9_999_999, "2": 1}},
    ),
    policy("rule", "r", {"model_name": "m", "order": 1, "when": "true", "then": {"version": "2"}}),
    policy("rollout", "m", {"version": "2"}),
    policy("priority", "*", {"reserved_replicas": {"1": 1}}),
    policy("batching", "m", {}),
    policy("breaker", "m", {}),
    policy("limits", "tenant", {"requests_per_s": 5.0, "burst": 10}),
    policy("sla", "*", {}),
    policy("price", "*", {"currency": "EUR"}),
    policy("retention", "*", {}),
]


def test_a_good_set_breaks_no_rule() -> None:
    """One policy of nearly each kind, as the rules want them."""
    assert broken(put(*GOOD)) == []
    check(EMPTY, put(*GOOD), HOME)


SPLIT = {"key": "entity", "salt": "s"}
BASE = (model(1, 2), deployed(1), route(1))
REFUSED: dict[str, tuple[PolicySet, list[str]]] = {
    "versions ascend": (
        put(policy("model", "m", {"versions": [
            {"version": "2", "digest": digest(2)}, {"version": "1", "digest": digest(1)}]})),
        ["model m", "ascending order", "2, 1", "sort them"],
    ),
    "a version stands once": (
        put(policy("model", "m", {"versions": [
            {"version": "1", "digest": digest(1)}, {"version": "1", "digest": digest(2)}]})),
        ["ascending order, each once", "1, 1"],
    ),
    "a pack has one version": (
        put(policy("model", "m", {"versions": [
            {"version": "1", "digest": digest(1)}, {"version": "2", "digest": digest(1)}]})),
        ["a pack has one version", digest(1), "versions 1 and 2", "use version 1"],
    ),
    "the pack is another model's": (
        put(model(11)), ["names this model", "of the model other", "publish it as"],
    ),
    "deployed but not published": (
        put(model(1), deployed(1, 3)), ["deployment m", "version 3; published are 1", "publish"],
    ),
    "deployed twice": (put(model(1), deployed(1, 1)), ["deployed once", "1, 1"]),
    "more replicas than runtimes": (
        put(model(1), deployed(1, replicas=3)),
        ["3 replicas, replicas_max of the home is 2", "mortise.toml"],
    ),
    "a policy of an unknown model": (
        put(policy("batching", "nobody", {})), ["batching nobody", "published model", "publish"],
    ),
    "routed but not deployed": (
        put(*BASE[:2], route(2)), ["route m", "default = 2; deployed are 1", "mortise promote m 2"],
    ),
    "an alias not deployed": (put(*BASE[:2], route(1, aliases={"x": "2"})), ["x = 2"]),
    "an alias like a version": (
        put(*BASE[:2], route(1, aliases={"7": "1"})), ["alias starts with a letter", "'7'"],
    ),
    "a fallback without a route": (
        put(*BASE[:2], route(1, fallback={"model_name": "other"})),
        ["has a route", "other", "add a route"],
    ),
    "a fallback not deployed": (
        put(*BASE[:2], route(1, fallback={"model_name": "other", "version": "4"})),
        ["other version 4; deployed are none"],
    ),
    "a fallback to itself": (
        put(*BASE[:2], route(1, fallback={"model_name": "m"})), ["do not loop", "m → m"],
    ),
    "a fallback loop": (
        put(*BASE[:2], route(1, fallback={"model_name": "other"}), model(1, name="other", first=10),
            deployed(1, name="other"), route(1, name="other", fallback={"model_name": "m"})),
        ["route m", "m → other → m", "remove the fallback"],
    ),
    "slots too few": (
        put(*BASE, policy("split", "m", {**SPLIT, "shares": {"1": 9_999_999}})),
        ["sum to 10,000,000", "9,999,999", "add 1 slots"],
    ),
    "slots too many": (
        put(model(1, 2), deployed(1, 2),
            policy("split", "m", {**SPLIT, "shares": {"1": 10_000_000, "2": 1}})),
        ["10,000,001", "take away 1 slots"],
    ),
    "a share not deployed": (
        put(*BASE, policy("split", "m", {**SPLIT, "shares": {"2": 10_000_000}})),
        ["split m", "version 2; deployed are 1"],
    ),
    "a shadow not deployed": (
        put(*BASE, policy("split", "m", {
            **SPLIT, "shares": {"1": 10_000_000}, "shadow": {"version": "2", "slots": 1}})),
        ["version 2; deployed are 1"],
    ),
    "a rule of an unknown model": (
        put(policy("rule", "r", {
            "model_name": "x", "order": 1, "when": "true", "then": {"risk_level": 1}})),
        ["rule r", "published model", "x"],
    ),
    "a rule that does two things": (
        put(*BASE, policy("rule", "r", {
            "model_name": "m", "order": 1, "when": "true",
            "then": {"risk_level": 1, "refuse": "no"}})),
        ["exactly one", "risk_level, refuse"],
    ),
    "a rule that does nothing": (
        put(*BASE, policy("rule", "r", {
            "model_name": "m", "order": 1, "when": "true", "then": {}})),
        ["exactly one", "received none"],
    ),
    "a rule to a version not deployed": (
        put(*BASE, policy("rule", "r", {
            "model_name": "m", "order": 1, "when": "true", "then": {"version": "2"}})),
        ["a rule names a deployed version", "version 2"],
    ),
    "a rule that nobody can read": (
        put(*BASE, policy("rule", "r", {
            "model_name": "m", "order": 1, "when": "risk_level == 1 and tenant > 3",
            "then": {"version": "1"}})),
        ["rule r", "`when` is an expression", "and tenant > 3", "at 21: there is no field",
         "docs/rules.md"],
    ),
    "a rule that refuses without a reason": (
        put(*BASE, policy("rule", "r", {
            "model_name": "m", "order": 1, "when": "true", "then": {"refuse": ""}})),
        ["`refuse` says why in 1 to 1024 characters", "received 0"],
    ),
    "more rules than a model may have": (
        put(*BASE, *(policy("rule", f"r{n}", {
            "model_name": "m", "order": n, "when": "true", "then": {"version": "1"}})
            for n in range(33))),
        ["rules of m", "at most 32 rules", "received 33"],
    ),
    "a rollout that does not end": (
        put(*BASE, policy("rollout", "m", {"version": "1", "steps": [1, 10]})),
        ["end at 100", "1, 10"],
    ),
    "a rollout that falls": (
        put(*BASE, policy("rollout", "m", {"version": "1", "steps": [10, 1, 100]})),
        ["steps rise"],
    ),
    "a rollout not deployed": (
        put(*BASE, policy("rollout", "m", {"version": "2"})), ["version 2; deployed are 1"],
    ),
    "a weight missing": (
        put(policy("priority", "*", {"weights": {"1": 3, "2": 2}})), ["priority *", "weights has"],
    ),
    "a higher risk weighs less": (
        put(policy("priority", "*", {"weights": {"1": 1, "2": 2, "3": 1}})), ["weighs no less"],
    ),
    "all replicas reserved": (
        put(policy("priority", "*", {"reserved_replicas": {"1": 2}})),
        ["2 reserved, [runtime] replicas of mortise.toml is 2", "at most 1, or raise"],
    ),
    "split above a batch": (
        put(*BASE, policy("batching", "m", {"tokens_max": 10, "tokens_split": 11})),
        ["tokens_split is at most", "11 and 10"],
    ),
    "a burst without a rate": (
        put(policy("limits", "t", {"burst": 5})), ["limits t", "burst 5 alone", "requests_per_s"],
    ),
    "stages above the whole": (
        put(policy("sla", "*", {"p99_ms": 10.0, "stages": {"forward": 11.0}})),
        ["11 ms in stages, p99_ms is 10"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_each_rule_refuses_with_rule_received_and_remedy(case: str) -> None:
    """A set that breaks one rule is refused once, and the message says all three."""
    after, words = REFUSED[case]
    found = broken(after)
    assert len(found) == 1, found
    for word in words:
        assert word in found[0]
    with pytest.raises(MeshError, match="received") as refusal:
        check(EMPTY, after, HOME)
    assert refusal.value.name == "POLICY_INVALID"


def test_every_rule_has_its_refusal() -> None:
    """No rule of the list is without a case here."""
    caught = set()
    shrunk = put(model(1))
    cases = [(after, EMPTY, HOME) for after, _ in REFUSED.values()]
    cases += [(shrunk, put(model(1, 2)), HOME), (put(model(1)), EMPTY, unreadable(1))]
    for after, before, home in cases:
        caught |= {violation.rule for violation in violations(before, after, home)}
    assert len(caught) >= len(RULES)


def unreadable(number: int) -> Surroundings:
    """A home in which one pack cannot be read."""
    return Surroundings({**HOME.packs, digest(number): "manifest.json cannot be opened"}, 2, 2)


def test_versions_only_grow() -> None:
    """A published version can neither vanish nor change its pack."""
    before = put(model(1, 2))
    assert broken(put(model(1, 2, 3)), before) == []
    assert "version 2 as absent" in broken(put(model(1)), before)[0]
    rows = [{"version": "1", "digest": digest(1)}, {"version": "2", "digest": digest(5)}]
    swapped = policy("model", "m", {"versions": rows})
    assert f"version 2 as {digest(5)}" in broken(put(swapped), before)[0]
    assert "version 1 as absent" in broken(put(), before)[0]


def test_a_pack_must_be_readable_when_it_is_published_or_deployed() -> None:
    """The refusal names digest, reason and the command that stages a pack."""
    found = broken(put(model(1)), home=unreadable(1))
    assert len(found) == 1
    assert "cannot be opened" in found[0]
    assert "mortise publish" in found[0]


def test_a_pack_that_left_the_disk_does_not_block_other_commits() -> None:
    """Only manifests of newly published or newly deployed packs are read."""
    before = put(model(1, 2), deployed(1))
    assert packs_needed(before, put(model(1, 2, 3), deployed(1))) == {digest(3)}
    assert packs_needed(before, put(model(1, 2), deployed(1, 2))) == {digest(2)}
    assert packs_needed(before, put(*before.policies, policy("sla", "*", {}))) == set()
    assert packs_needed(EMPTY, before) == {digest(1), digest(2)}


def test_a_route_cannot_be_left_behind() -> None:
    """A commit that only changes the deployment is refused when a route needs what it drops."""
    found = broken(put(model(1, 2), deployed(2), route(1)), put(model(1, 2), deployed(1), route(1)))
    assert found[0].startswith("route m")


def test_a_fallback_chain_that_ends_is_fine() -> None:
    """m → other → third, which has no fallback."""
    third = [model(1, name="third", first=10), deployed(1, name="third"), route(1, name="third")]
    home = Surroundings({digest(1): manifest("m"), digest(2): manifest("m")}, 2, 2)
    chain = put(
        *BASE[:2],
        route(1, fallback={"model_name": "third", "version": "1"}),
        *third,
    )
    assert broken(chain, home=home) == []


def test_a_loop_elsewhere_is_told_once() -> None:
    """A model whose fallback leads into a loop is not blamed for it."""

    def one(name: str, first: int, towards: str) -> list[Policy]:
        return [
            model(1, name=name, first=first),
            deployed(1, name=name),
            route(1, name=name, fallback={"model_name": towards}),
        ]  # fmt: skip

    home = Surroundings({}, 2, 2)
    found = broken(put(*one("a", 0, "b"), *one("b", 10, "c"), *one("c", 15, "b")), home=home)
    assert len(found) == 1
    assert found[0].startswith("route b")


def test_too_many_violations_are_counted() -> None:
    """A refusal stays readable."""
    many = put(*(policy("batching", f"x{n}", {}) for n in range(violations_max + 3)))
    with pytest.raises(MeshError, match="and 3 more") as refusal:
        check(EMPTY, many, HOME)
    assert refusal.value.details == {
        "policy": "batching x0",
        "rule": "its name is that of a published model",
        "violations": violations_max + 3,
    }


def test_a_set_has_a_maximum() -> None:
    """At the limit it passes, one above it is refused."""
    many = [policy("price", f"t{n}", {"currency": "EUR"}) for n in range(policy_set_max + 1)]
    assert broken(put(*many[:-1])) == []
    assert f"at most {policy_set_max}" in broken(put(*many))[0]


def test_a_commit_names_a_policy_once() -> None:
    """The same kind and name twice in one commit is refused."""
    check_changes([policy("sla", "*", {}), policy("price", "*", {"currency": "EUR"})])
    with pytest.raises(MeshError, match="sla \\*: a commit names a policy once"):
        check_changes([policy("sla", "*", {}), policy("sla", "*", {})])
