"""Compiled routing rules: what they mean, and what they do to a request."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from contracts.errors import MeshError
from contracts.inference import InferenceRequest, Message
from contracts.policies import RulePolicy, RuleSpec, Then
from services.orchestrator.rules import compile_rules
from services.orchestrator.rules_compiler import Ruling, compile_rulings, row_count
from shared.rules_grammar import parse
from shared.rules_tree import Condition, RuleFault, rules_nodes_max, rules_per_model_max
from tests.unit.services.orchestrator.making import request
from tests.unit.services.orchestrator.rules_reference import conditions, holds, request_of, rows


def rule(name: str, when: str, order: int = 0, model: str = "tiny", **then: Any) -> RulePolicy:
    """A rule policy."""
    spec = RuleSpec(model_name=model, order=order, when=when, then=Then(**then))
    return RulePolicy(name=name, spec=spec)


def decide(*policies: RulePolicy, **body: Any) -> tuple[str, int]:
    """What the rules of `tiny` say of a request."""
    compiled, faults = compile_rules(policies)
    assert not faults
    return compiled["tiny"].decide(request(**body))


def says(condition: Condition, body: InferenceRequest) -> bool:
    """Whether a compiled condition holds for a request."""
    version, _, _ = compile_rulings([Ruling("r", condition, "1", 0, "")])(body)
    return version == "1"


def holds_for(text: str, **body: Any) -> bool:
    """Whether an expression holds for a request."""
    return says(parse(text).condition, request(**body))


@given(conditions, rows)
@settings(max_examples=400, deadline=None)
def test_a_compiled_rule_says_what_the_reference_says(text: str, row: dict[str, Any]) -> None:
    """For every expression of the grammar and every request; none fails."""
    try:
        found = parse(text)
    except RuleFault as fault:
        if "at most" not in fault.reason:
            raise  # the strategy makes only what the grammar takes, but for its size
        return
    assert says(found.condition, request_of(row)) is holds(found.condition, row)


@pytest.mark.parametrize(
    ("text", "body", "expected"),
    [
        ("tenant_id == 'acme'", {"tenant_id": "acme"}, True),
        ("tenant_id in ['a', 'b']", {"tenant_id": "b"}, True),
        ("tenant_id not in ['a', 'b']", {"tenant_id": "b"}, False),
        ("risk_level < 2", {"risk_level": 1}, True),
        ("2 > risk_level", {"risk_level": 1}, True),
        ("row_count >= 3", {"rows": 3}, True),
        ("entity == 'x'", {}, False),
        ("entity != 'x'", {}, True),
        ("exists entity", {}, False),
        ("exists entity", {"entity": ""}, True),
        ("entity starts_with 'N1'", {"entity": "N123"}, True),
        ("entity ends_with 'N1'", {"entity": "N123"}, False),
        ("parameters.tier == 'gold'", {"parameters": {"tier": "gold"}}, True),
        ("parameters.score > 0.5", {"parameters": {"score": 1}}, True),
        ("parameters.score > 0.5", {"parameters": {"score": "1"}}, False),
        ("parameters.score == 1", {"parameters": {"score": True}}, False),
        ("parameters.score in [1, 2]", {"parameters": {"score": True}}, False),
        ("parameters.score in [1, 2]", {"parameters": {"score": 2.0}}, True),
        ("parameters.flag", {"parameters": {"flag": True}}, True),
        ("parameters.flag", {"parameters": {"flag": 1}}, False),
        ("not parameters.flag", {}, True),
        ("exists parameters.flag", {"parameters": {"flag": None}}, False),
        ("parameters['a b'] == entity", {"parameters": {"a b": "x"}, "entity": "x"}, True),
        ("parameters.n == 0", {"parameters": {"n": float("nan")}}, False),
        ("parameters.n == row_count", {"parameters": {"n": 1}}, True),
        ("parameters.tier in ['gold']", {"parameters": {"tier": "g" * 100_000}}, False),
        ("true", {}, True),
        ("false or tenant_id == 'default' and not risk_level == 1", {}, True),
    ],
)
def test_what_expressions_mean(text: str, body: dict[str, Any], expected: bool) -> None:
    """The examples of docs/rules.md and the corners of absent values and kinds."""
    assert holds_for(text, **body) is expected


def test_rows_are_counted_in_every_form_and_nonsense_has_none() -> None:
    """A request that is refused later is no reason to fail here."""
    given_as: list[tuple[dict[str, Any], int]] = [
        ({"rows": Raw(msgspec.msgpack.encode([{}, {}]))}, 2),
        ({"rows": Raw(msgspec.msgpack.encode("none"))}, 0),
        ({"text": ["a", "b", "c"]}, 3),
        ({"input_ids": [[1], [2]]}, 2),
        ({"messages": [Message(role="user", content="x")]}, 1),
        ({}, 0),
        ({"inputs": [msgspec.structs.replace(request().inputs[0], shape=[])]}, 0),  # type: ignore[index]
    ]
    for fields, rows_expected in given_as:
        assert row_count(InferenceRequest(model_name="tiny", **fields)) == rows_expected


def test_the_first_version_and_the_first_risk_level_count() -> None:
    """By order, then by name; each rule sees the request as it was sent."""
    policies = (
        rule("z", "risk_level == 2", 1, version="2"),
        rule("b", "true", 2, version="3"),
        rule("a", "true", 2, risk_level=1),
        rule("c", "risk_level == 1", 3, risk_level=3),
    )
    assert decide(*policies) == ("2", 1)
    assert decide(*policies, risk_level=3) == ("3", 1)
    assert decide(rule("n", "false", version="2")) == ("", 0)


def test_a_rule_refuses_with_its_name_and_reason() -> None:
    """Even if another one named a version before."""
    with pytest.raises(MeshError) as caught:
        decide(rule("a", "true", version="2"), rule("b", "true", 1, refuse="not in this house"))
    assert caught.value.name == "RULE_REFUSED"
    assert caught.value.message == "rule b refuses this request: not in this house"
    assert caught.value.details == {"rule": "b"}
    assert not caught.value.row.retryable


def test_rules_belong_to_their_model() -> None:
    """Others are not asked."""
    compiled, _ = compile_rules([rule("a", "true", model="other", refuse="no")])
    assert "tiny" not in compiled


def test_what_is_no_rule_is_a_fault_with_its_place() -> None:
    """The commit is refused, and the other rules are looked at too."""
    _, faults = compile_rules([rule("a", "tenant_id > 3", version="1"), rule("b", "", version="1")])
    assert faults == [
        "rule a: at 11: a text is compared with a number",
        "rule b: at 1: a literal is expected, received the end",
    ]


def test_a_model_s_rules_are_bounded_together() -> None:
    """By number and by nodes, which bounds the time of the worst request."""
    many = [rule(f"r{n}", "true", n, risk_level=1) for n in range(rules_per_model_max + 1)]
    assert compile_rules(many[1:])[1] == []
    assert "at most 32 rules, received 33" in compile_rules(many)[1][0]
    heavy = " or ".join(["risk_level == 1"] * 20)
    assert parse(heavy).nodes == 61
    fits = rules_nodes_max // 61
    rules = [rule(f"r{n}", heavy, n, risk_level=1) for n in range(fits + 1)]
    assert compile_rules(rules[:fits])[1] == []
    assert "at most 96 nodes together" in compile_rules(rules)[1][0]


@given(st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | st.floats() | st.text()))
@settings(deadline=None)
def test_no_parameters_make_a_rule_fail(parameters: dict[str, Any]) -> None:
    """Whatever a client puts there."""
    body = request(parameters=parameters or UNSET)
    for key in [*parameters, "absent"]:
        if not key or any(ord(one) < 32 for one in key):
            continue
        quoted = key.replace("\\", "\\\\").replace("'", "\\'")
        for rest in ("== 1", "< 2.5", "in ['a']", "starts_with ''", "== true", "!= entity", ""):
            says(parse(f"parameters['{quoted}'] {rest}").condition, body)
