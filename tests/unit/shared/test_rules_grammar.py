"""The grammar of routing rules: what it takes, and where it says no."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.rules_grammar import parse
from shared.rules_tree import (
    Comparison,
    Constant,
    Field,
    Junction,
    Negation,
    RuleFault,
    rule_characters_max,
    rule_depth_max,
    rule_nodes_max,
)

RISK = Field("risk_level", "", "number")


def fault(text: str) -> tuple[int, str]:
    """Position and reason of a text that is no rule."""
    with pytest.raises(RuleFault) as caught:
        parse(text)
    return caught.value.position, caught.value.reason


def test_or_binds_looser_than_and_and_not_binds_tightest() -> None:
    """As everybody expects; brackets change it."""
    one, two, three = (Comparison("==", RISK, Constant(n, "number")) for n in (1, 2, 3))
    text = "not risk_level == 1 and risk_level == 2 or risk_level == 3"
    assert parse(text).condition == Junction(False, (Junction(True, (Negation(one), two)), three))
    text = "not (risk_level == 1 and (risk_level == 2 or risk_level == 3))"
    assert parse(text).condition == Negation(Junction(True, (one, Junction(False, (two, three)))))


def test_escapes_and_numbers() -> None:
    """Both quotes; a backslash before a quote or itself; integers stay integers."""
    assert parse(r"""entity == 'it\'s \\ "so"'""").condition == Comparison(
        "==", Field("entity", "", "text"), Constant('it\'s \\ "so"', "text")
    )
    for text, number in (("-3", -3), ("2.5", 2.5), ("1e3", 1000.0), ("-1.5E-2", -0.015)):
        found = parse(f"risk_level >= {text}").condition
        assert isinstance(found, Comparison)
        assert found.right == Constant(number, "number")
        assert isinstance(found.right, Constant)
        assert type(found.right.value) is type(number)


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 1, "a literal is expected, received the end"),
        ("tenant_id", 1, "a condition is expected, this is a text"),
        ("risk_level and true", 1, "a condition is expected, this is a number"),
        ("tenant_id == 3", 11, "a text is compared with a number"),
        ("risk_level == true", 12, "a number is compared with a boolean"),
        ("tenant_id < 'b'", 11, "orders numbers, this is a text"),
        ("parameters.a < 'b'", 14, "orders numbers, this is a text"),
        ("1 == 1", 3, "two literals"),
        ("parameters.a == parameters.b", 14, "two parameters"),
        ("risk_level in [1, 'a']", 19, "the list is of number, this is a text"),
        ("parameters.a in [1, 'a']", 21, "the list is of number, this is a text"),
        ("risk_level in []", 16, "a literal is expected"),
        ("risk_level in (1)", 15, "'[' is expected"),
        ("risk_level not 3", 16, "'in' is expected after 'not'"),
        ("1 in [1]", 3, "stands after a field"),
        ("risk_level starts_with 'a'", 12, "a field that is a text"),
        ("entity ends_with 3", 18, "takes a text"),
        ("tenant == 'a'", 1, "there is no field 'tenant'; the fields are tenant_id"),
        ("rows.x == 1", 1, "there is no field 'rows'"),
        ("parameters == 1", 12, "'[' is expected"),
        ("parameters.3 == 1", 12, "a parameter's name is expected"),
        ("parameters[3] == 1", 12, "in quotes is expected"),
        ("entity == 'abc", 11, "begins nothing"),
        ("entity == 'a\\n'", 13, "no escape"),
        ("tenant_id = 'a'", 11, "begins nothing"),
        ("true true", 6, "the expression is over before true"),
        ("(true", 6, "')' is expected"),
        ("true)", 5, "over before )"),
        ("true and", 9, "received the end"),
        ("and", 1, "a field or a literal is expected"),
        ("exists 'a'", 8, "a field is expected"),
        ("__import__('os')", 1, "there is no field"),
        ("entity.x == 'a'", 1, "a condition is expected, this is a text"),
        ("risk_level == 1e999", 15, "more than a number can be"),
        (f"risk_level == {'9' * 40}", 15, "at most 32 characters"),
        ("true " * 500, 2_049, "at most 2048 characters, received 2500"),
    ],
)
def test_what_is_no_rule_is_refused_with_its_place(text: str, position: int, words: str) -> None:
    """The position counts characters from 1; the reason says what was received."""
    at, reason = fault(text)
    assert (at, words in reason) == (position, True), (at, reason)


def test_each_limit_at_it_and_one_above() -> None:
    """Characters, nodes, depth."""
    assert rule_characters_max >= len(parse_padded(rule_characters_max))
    assert fault(parse_padded(rule_characters_max + 1, checked=False))[0] == rule_characters_max + 1
    fits = " or ".join(["true"] * (rule_nodes_max - 1))
    assert parse(fits).nodes == rule_nodes_max
    assert "nodes" in fault(fits + " or true")[1]
    for opening, closing in (("(", ")"), ("not ", "")):
        deep = rule_depth_max - 1
        parse(opening * deep + "true" + closing * deep)
        assert "deep" in fault(opening * (deep + 1) + "true" + closing * (deep + 1))[1]


def parse_padded(characters: int, *, checked: bool = True) -> str:
    """`true` and spaces; parsed unless told otherwise."""
    text = "true".ljust(characters)
    if checked:
        parse(text)
    return text


@given(st.text(max_size=200) | st.text("()[]'\"\\=!<>.,abetrufalsnd 0123", max_size=200))
@settings(deadline=None)
def test_any_text_is_a_rule_or_a_fault(text: str) -> None:
    """Nothing else comes out, and the place of a fault is in the text or behind it."""
    position = 1
    try:
        parse(text)
    except RuleFault as found:
        position = found.position
    assert 1 <= position <= len(text) + 1
