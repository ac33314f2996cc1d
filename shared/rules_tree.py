"""The tree of a routing rule, as `rules_grammar` makes it and `services/orchestrator/rules.py`
evaluates it; and the limits of its size. Nodes only.
"""

from dataclasses import dataclass
from typing import Literal as Either

rule_characters_max = 2_048
"""Of one expression; the same as its policy field's."""
rule_nodes_max = 64
"""Fields, literals, lists and operators of one expression."""
rule_depth_max = 16
"""Conditions inside conditions."""
rules_per_model_max = 32
rules_nodes_max = 96
"""Of all rules of one model: what an evaluation costs is bounded by it."""

Kind = Either["text", "number", "boolean", "any"]
"""What a value is; of a parameter it is known only when the request is there."""
FIELDS: dict[str, Kind] = {
    "tenant_id": "text", "risk_level": "number", "row_count": "number", "entity": "text",
}  # fmt: skip
PARAMETERS = "parameters"

Value = str | int | float | bool


class RuleFault(ValueError):
    """Why a text is no rule: `position` is that of the character, from 1."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at {position}: {reason}")
        self.position = position
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the request, or with a `key` one of its parameters."""

    name: str
    key: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    value: Value
    kind: Kind


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left` against `right`; at least one of them is a field."""

    sign: str
    left: Field | Constant
    right: Field | Constant


@dataclass(frozen=True, slots=True)
class Membership:
    """Whether the field is one of the values, which are of one kind."""

    field: Field
    values: tuple[Value, ...]
    kind: Kind


@dataclass(frozen=True, slots=True)
class Affix:
    """Whether the field, a text, begins (or ends) with this one."""

    field: Field
    text: str
    is_start: bool


@dataclass(frozen=True, slots=True)
class Existence:
    """Whether the request has the field, and not null in it."""

    field: Field


@dataclass(frozen=True, slots=True)
class Truth:
    """A literal or a parameter as a condition: whether it is `true`."""

    of: Field | Constant


@dataclass(frozen=True, slots=True)
class Negation:
    """`not`."""

    of: "Condition"


@dataclass(frozen=True, slots=True)
class Junction:
    """`and` (all) or `or` (any) of two conditions or more."""

    is_all: bool
    of: tuple["Condition", ...]


Condition = Comparison | Membership | Affix | Existence | Truth | Negation | Junction


@dataclass(frozen=True, slots=True)
class Rule:
    """A checked expression; `nodes` is its cost."""

    condition: Condition
    nodes: int


def rules_fault(rules: int, nodes: int) -> str | None:
    """Why a model cannot have so many rules with so many nodes together, or None."""
    if rules > rules_per_model_max:
        return f"a model has at most {rules_per_model_max} rules, received {rules}"
    if nodes > rules_nodes_max:
        return (
            f"a model's expressions have at most {rules_nodes_max} nodes together, received {nodes}"
        )
    return None
