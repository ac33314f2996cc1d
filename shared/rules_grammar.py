"""The grammar of routing rules: text → checked tree. Pure; see docs/rules.md.

    condition   = conjunction { "or" conjunction }
    conjunction = negation { "and" negation }
    negation    = "not" negation | "exists" field | "(" condition ")" | comparison
    comparison  = operand [ ("==" | "!=" | "<" | "<=" | ">" | ">=") operand
                          | [ "not" ] "in" "[" literal { "," literal } "]"
                          | ("starts_with" | "ends_with") text ]
    operand     = field | literal
    field       = "tenant_id" | "risk_level" | "row_count" | "entity"
                | "parameters" ( "." word | "[" text "]" )
    literal     = integer | decimal | text in ' or " | "true" | "false"

There is nothing that repeats, calls, or reaches beyond the request; a tree has at most
`rule_nodes_max` nodes and every node looks at one request's fields once, so that an evaluation is
bounded. What the tree means is `services/orchestrator/rules.py`.
"""

import math
import re

from shared.rules_tree import (
    FIELDS,
    PARAMETERS,
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
    Rule,
    RuleFault,
    Truth,
    Value,
    rule_characters_max,
    rule_depth_max,
    rule_nodes_max,
)

_number_characters_max = 32

COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
_ORDER = ("<=", ">=", "<", ">")
_WORDS = {"or", "and", "not", "exists", "in", "starts_with", "ends_with", "true", "false"}
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<sign>==|!=|<=|>=|[<>()\[\],.])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def parse(text: str) -> Rule:
    """The rule that a text stands for. Raises RuleFault naming the position and the reason."""
    if len(text) > rule_characters_max:
        raise RuleFault(
            rule_characters_max + 1,
            f"an expression has at most {rule_characters_max} characters, received {len(text)}",
        )
    parser = _Parser(_tokens(text), len(text) + 1)
    condition = parser.condition(1)
    position, kind, shown = parser.next()
    if kind != "end":
        raise RuleFault(position, f"the expression is over before {shown}")
    return Rule(condition, parser.nodes)


Token = tuple[int, str, str]
"""Position, kind and text."""


def _tokens(text: str) -> list[Token]:
    tokens, at = [], 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise RuleFault(at + 1, f"{text[at]!r} begins nothing that a rule may hold")
        kind = found.lastgroup
        tokens.append((found.start(kind) + 1, kind, found[kind]))
        at = found.end()
    return tokens


class _Parser:
    """Recursive descent over the tokens; `nodes` counts what it made."""

    def __init__(self, tokens: list[Token], end: int) -> None:
        self._tokens = tokens
        self._end: Token = (end, "end", "the end")
        self._at = 0
        self.nodes = 0

    # Tokens.

    def peek(self) -> Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else self._end

    def next(self) -> Token:
        token = self.peek()
        self._at += 1
        return token

    def _take(self, *words: str) -> str:
        """The next token if it is one of these, else nothing."""
        _, kind, shown = self.peek()
        if kind in ("word", "sign") and shown in words:
            self._at += 1
            return shown
        return ""

    def _expect(self, sign: str, why: str) -> None:
        position, _, shown = self.peek()
        if not self._take(sign):
            raise RuleFault(position, f"{sign!r} is expected {why}, received {shown}")

    def _count(self, position: int) -> None:
        self.nodes += 1
        if self.nodes > rule_nodes_max:
            raise RuleFault(position, f"an expression has at most {rule_nodes_max} nodes")

    # Conditions.

    def condition(self, depth: int) -> Condition:
        return self._junction("or", depth)

    def _junction(self, word: str, depth: int) -> Condition:
        position = self.peek()[0]
        if depth > rule_depth_max:
            raise RuleFault(position, f"conditions nest at most {rule_depth_max} deep")
        parts = [self._part(word, depth)]
        while self._take(word):
            parts.append(self._part(word, depth))
        if len(parts) == 1:
            return parts[0]
        self._count(position)
        return Junction(word == "and", tuple(parts))

    def _part(self, word: str, depth: int) -> Condition:
        return self._junction("and", depth) if word == "or" else self._negation(depth)

    def _negation(self, depth: int) -> Condition:
        position = self.peek()[0]
        if depth > rule_depth_max:
            raise RuleFault(position, f"conditions nest at most {rule_depth_max} deep")
        if self._take("not"):
            self._count(position)
            return Negation(self._negation(depth + 1))
        if self._take("exists"):
            self._count(position)
            return Existence(self._field("exists"))
        if self._take("("):
            inner = self.condition(depth + 1)
            self._expect(")", "after the condition")
            return inner
        return self._comparison()

    def _comparison(self) -> Condition:
        position = self.peek()[0]
        left = self._operand()
        at = self.peek()[0]
        sign = self._take(*COMPARISONS)
        if sign:
            right = self._operand()
            self._count(at)
            _check_comparison(at, sign, left, right)
            return Comparison(sign, left, right)
        is_negated = bool(self._take("not"))
        if self._take("in"):
            self._count(at)
            found: Condition = self._membership(at, left)
        elif is_negated:
            raise RuleFault(self.peek()[0], "'in' is expected after 'not'")
        elif word := self._take("starts_with", "ends_with"):
            self._count(at)
            found = self._affix(at, left, word)
        else:
            if left.kind not in ("any", "boolean"):
                raise RuleFault(position, f"a condition is expected, this is a {left.kind}")
            found = Truth(left)
        if is_negated:
            self._count(at)
            return Negation(found)
        return found

    def _membership(self, at: int, left: Field | Constant) -> Membership:
        if not isinstance(left, Field):
            raise RuleFault(at, "'in' stands after a field")
        self._expect("[", "after 'in'")
        values: list[Value] = []
        kind: Kind = left.kind
        while True:
            position = self.peek()[0]
            value = self._literal()
            if kind == "any":
                kind = value.kind
            elif value.kind != kind:
                raise RuleFault(position, f"the list is of {kind}, this is a {value.kind}")
            values.append(value.value)
            if not self._take(","):
                break
        self._expect("]", "after the list's last value")
        return Membership(left, tuple(values), kind)

    def _affix(self, at: int, left: Field | Constant, word: str) -> Affix:
        if not isinstance(left, Field) or left.kind not in ("text", "any"):
            raise RuleFault(at, f"{word!r} stands after a field that is a text")
        position = self.peek()[0]
        value = self._literal()
        if not isinstance(value.value, str):
            raise RuleFault(position, f"{word!r} takes a text, this is a {value.kind}")
        return Affix(left, value.value, word == "starts_with")

    # Operands.

    def _operand(self) -> Field | Constant:
        position, kind, shown = self.peek()
        if kind == "word" and shown not in _WORDS:
            return self._field("here")
        if kind == "word" and shown not in ("true", "false"):
            raise RuleFault(position, f"a field or a literal is expected, received {shown!r}")
        return self._literal()

    def _field(self, where: str) -> Field:
        position, kind, name = self.next()
        known = f"{', '.join(FIELDS)}, {PARAMETERS}.NAME"
        if kind != "word":
            raise RuleFault(position, f"a field is expected {where}, received {name}")
        self._count(position)
        if name in FIELDS:
            return Field(name, "", FIELDS[name])
        if name != PARAMETERS:
            raise RuleFault(position, f"there is no field {name!r}; the fields are {known}")
        if self._take("."):
            at, kind, key = self.next()
            if kind != "word":
                raise RuleFault(at, f"a parameter's name is expected, received {key}")
        else:
            self._expect("[", f"or '.' after {PARAMETERS}")
            at, kind, key = self.next()
            if kind != "text":
                raise RuleFault(at, f"a parameter's name in quotes is expected, received {key}")
            key = _unquoted(at, key)
            self._expect("]", "after the parameter's name")
        return Field(PARAMETERS, key, "any")

    def _literal(self) -> Constant:
        position, kind, shown = self.next()
        if kind == "text":
            self._count(position)
            return Constant(_unquoted(position, shown), "text")
        if kind == "number":
            self._count(position)
            return Constant(_number(position, shown), "number")
        if kind == "word" and shown in ("true", "false"):
            self._count(position)
            return Constant(shown == "true", "boolean")
        raise RuleFault(position, f"a literal is expected, received {shown}")


def _check_comparison(at: int, sign: str, left: Field | Constant, right: Field | Constant) -> None:
    """Only what can be equal, or ordered, is compared; the cost does not depend on the request."""
    if isinstance(left, Constant) and isinstance(right, Constant):
        raise RuleFault(at, "two literals are compared; one side is a field")
    kinds = {left.kind, right.kind}
    if kinds == {"any"}:
        raise RuleFault(at, "two parameters are compared, whose length nobody bounds")
    if "any" not in kinds and len(kinds) > 1:
        raise RuleFault(at, f"a {left.kind} is compared with a {right.kind}")
    if sign in _ORDER and kinds - {"any"} != {"number"}:
        raise RuleFault(at, f"{sign!r} orders numbers, this is a {(kinds - {'any'}).pop()}")


def _unquoted(position: int, shown: str) -> str:
    for escape in _ESCAPED.finditer(shown[1:-1]):
        if escape[1] not in "\\'\"":
            at = position + 1 + escape.start()
            raise RuleFault(at, f"\\{escape[1]} is no escape; those are \\\\, \\' and \\\"")
    return _ESCAPED.sub(r"\1", shown[1:-1])


def _number(position: int, shown: str) -> int | float:
    if len(shown) > _number_characters_max:
        raise RuleFault(position, f"a number has at most {_number_characters_max} characters")
    if shown.lstrip("-").isdigit():
        return int(shown)
    number = float(shown)
    if not math.isfinite(number):
        raise RuleFault(position, f"{shown} is more than a number can be")
    return number
