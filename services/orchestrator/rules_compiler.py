"""The routing rules of a model as one function of a request, made when they come into force.

What a tree means: two values are equal if both are there, of one kind, and the same; `!=` is the
opposite of `==`, so that it holds for what is not there. Only numbers are ordered. A boolean is no
number. Every condition is true or false for every request; none fails.

How: one line of Python for each rule, in which every field is a local variable that holds either a
value of the kind that is asked for or something that equals nothing. Invariant: nothing that a
rule's author or a client wrote is ever part of that text. It is made of the names and operators in
this module; literals, keys and versions come in as the defaults of its parameters. What a line
costs does not depend on the request: a parameter's text counts up to `rule_characters_max`, which
no literal is longer than.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from contracts.errors import MeshError
from contracts.inference import InferenceRequest
from contracts.types import UNSET
from services.orchestrator.rows import count_rows
from shared.rules_tree import (
    Affix,
    Comparison,
    Condition,
    Constant,
    Existence,
    Field,
    Junction,
    Kind,
    Membership,
    Negation,
    Truth,
    rule_characters_max,
)

Verdict = tuple[str, int, int]
"""The version ("": none), the risk level (0: none), the index of the rule that refuses (−1)."""
Decide = Callable[[InferenceRequest], Verdict]
_NOTHING = object()
"""Equals no text."""
_SOURCES = {
    "tenant_id": ("tenant_id = body.tenant_id",),
    "risk_level": ("risk_level = body.risk_level",),
    "row_count": ("row_count = count(body)",),
    "entity": ("entity = body.entity", "if entity is UNSET: entity = None"),
}
_SHAPES = {
    "any": "{0} = get({1})",
    "number": "{0} = {1} if type({1}) is float or type({1}) is int else NAN",
    "text": (
        "{0} = {1} if type({1}) is str and len({1}) <= LONGEST else NOTHING"
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ruling:
    """One rule: when `condition` holds, exactly one of the three is done."""

    name: str
    condition: Condition
    version: str
    risk_level: int
    refuse: str


def compile_rulings(rulings: Sequence[Ruling]) -> Decide:
    """What rules say of a request: the first version, the first risk level, and a refusal."""
    text = _Text()
    lines = []
    for index, ruling in enumerate(rulings):
        test = text.condition(ruling.condition)
        if ruling.refuse:
            lines.append(f"if {test}: return '', 0, {index}")
        elif ruling.version:
            lines.append(f"if not version and {test}: version = {text.constant(ruling.version)}")
        else:
            lines.append(f"if not risk and {test}: risk = {ruling.risk_level}")
    return text.function([*lines, "return version, risk, -1"])


def row_count(body: InferenceRequest) -> int:
    """Rows of a request, in whichever form; 0 for one so wrong that it is refused later."""
    if body.inputs is not UNSET:
        shape = body.inputs[0].shape
        return shape[0] if shape else 0
    if body.rows is not UNSET:
        try:
            return count_rows(body.rows)
        except MeshError:
            return 0
    if body.text is not UNSET:
        return len(body.text)
    if body.input_ids is not UNSET:
        return len(body.input_ids)
    return 0 if body.messages is UNSET else 1


class _Text:
    """The function's text as it grows: constants, and the lines that fetch what is used."""

    def __init__(self) -> None:
        self._constants: dict[str, Any] = {
            "UNSET": UNSET, "NONE": MappingProxyType({}), "NAN": float("nan"),
            "NOTHING": _NOTHING, "LONGEST": rule_characters_max, "count": row_count,
            "version": "", "risk": 0,
        }  # fmt: skip
        self._fetches: dict[str, tuple[str, ...]] = {}
        self._keys: dict[str, int] = {}

    def function(self, lines: Sequence[str]) -> Decide:
        """The finished function."""
        defaults = ", ".join(f"{name}={name}" for name in self._constants)
        fetches = [line for fetch in self._fetches.values() for line in fetch]
        body = "\n    ".join([*fetches, *lines])
        scope: dict[str, Any] = {"__builtins__": {"type": type, "len": len}, **self._constants}
        scope |= {"str": str, "int": int, "float": float}
        exec(compile(f"def decide(body, {defaults}):\n    {body}\n", "<rules>", "exec"), scope)
        decide: Decide = scope["decide"]
        return decide

    def constant(self, value: Any) -> str:
        """The name under which the text sees a value."""
        name = f"c{len(self._constants)}"
        self._constants[name] = value
        return name

    def condition(self, condition: Condition) -> str:
        """An expression that is True or False."""
        match condition:
            case Comparison(sign=sign, left=left, right=right):
                return self._comparison(sign, left, right)
            case Membership(field=field, values=values, kind="boolean"):
                name = self._operand(field, "any")
                return f"({' or '.join(f'{name} is {value is True}' for value in {*values})})"
            case Membership(field=field, values=values, kind=kind):
                return f"({self._operand(field, kind)} in {self.constant(frozenset(values))})"
            case Affix(field=field, text=text, is_start=is_start):
                return self._affix(field, text, "startswith" if is_start else "endswith")
            case Existence(field=field):
                return f"({self._operand(field, 'any')} is not None)"
            case Truth(of=of):
                return f"({self._operand(of, 'any')} is True)"
            case Negation(of=inner):
                return f"(not {self.condition(inner)})"
            case Junction(is_all=is_all, of=parts):
                word = " and " if is_all else " or "
                return f"({word.join([self.condition(part) for part in parts])})"
            case _:
                raise AssertionError(f"{condition} is no condition")

    def _comparison(self, sign: str, left: Field | Constant, right: Field | Constant) -> str:
        kinds = {left.kind, right.kind} - {"any"}
        kind = kinds.pop()
        assert not kinds, "the grammar compares one kind"
        one, other = self._operand(left, kind), self._operand(right, kind)
        if kind == "boolean":
            equal = f"({one} is {other})"
        elif "entity" in (one, other) and isinstance(left, Field) and isinstance(right, Field):
            equal = f"(entity is not None and {one} == {other})"
        else:
            return f"({one} {sign} {other})"
        return f"(not {equal})" if sign == "!=" else equal

    def _affix(self, field: Field, text: str, method: str) -> str:
        name = self._operand(field, "any")
        return f"(type({name}) is str and {name}.{method}({self.constant(text)}))"

    def _operand(self, of: Field | Constant, kind: Kind) -> str:
        """The name of a local variable with the value, if it is of this kind."""
        if isinstance(of, Constant):
            return str(of.value) if isinstance(of.value, bool) else self.constant(of.value)
        if not of.key:
            self._fetches[of.name] = _SOURCES[of.name]
            return of.name
        self._fetches.setdefault("parameters", (
            "parameters = body.parameters",
            "get = NONE.get if parameters is UNSET else parameters.get",
        ))  # fmt: skip
        number = self._keys.setdefault(of.key, len(self._keys))
        found = f"any{number}"
        if found not in self._fetches:
            self._fetches[found] = (_SHAPES["any"].format(found, self.constant(of.key)),)
        if kind in ("any", "boolean"):
            return found
        name = f"{kind}{number}"
        self._fetches[name] = (_SHAPES[kind].format(name, found),)
        return name
