"""Scalar SQL as Python statements: one handler per node kind, typed, with SQL's nulls.

Invariant: every emitted statement is total. It cannot raise for any value of its operands' types,
so the arms of a CASE may be computed before it is known which one is taken. What could raise, or
differ from the engine, is not in the subset: the view then runs on the engine.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from sqlglot import exp

from services.data_fabric.zones import DAY_US, to_clock


class Unsupported(Exception):
    """An expression outside the subset; the message says which."""


@dataclass(frozen=True, slots=True)
class Value:
    """The name of a Python variable or a literal, its dtype, and whether it may be None. "clock"
    is a local time and "interval" a constant length, both in integer microseconds."""

    code: str
    dtype: str
    is_nullable: bool


@dataclass(slots=True)
class Emitter:
    """The statements so far, and the objects that they name."""

    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)

    def assign(self, expression: str) -> str:
        """The variable that holds an expression's value; equal expressions share one."""
        name = self.known.get(expression)
        if name is None:
            name = self.known[expression] = f"v{len(self.known)}"
            self.lines.append(f"{name} = {expression}")
        return name

    def bind(self, value: object, name: str = "") -> str:
        """The name under which the statements see a Python object. Equal objects share one (two
        bound methods of one object are equal, but not the same)."""
        for known, bound in self.names.items():
            if bound is value or (callable(value) and bound == value):
                return known
        name = f"{name or 'k'}_{len(self.names)}"
        self.names[name] = value
        return name


Columns = Callable[[exp.Column], Value]
"""The value of a column in the scope of the step that names it."""

_COMPARISONS = {
    exp.EQ: "==", exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
_ARITHMETIC = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
_CLOCK_PARTS = {
    exp.Hour: "{0} // 3600000000 % 24",
    exp.Minute: "{0} // 60000000 % 60",
    # 1970-01-01 was a Thursday, the fourth day of the ISO week.
    exp.DayOfWeekIso: "({0} // 86400000000 + 3) % 7 + 1",
}
_DATE_PARTS = {exp.Month: "{0}.month", exp.Year: "{0}.year"}
_DAYS_TO_1970 = date(1970, 1, 1).toordinal()
_UNIT_US = {
    "MINUTE": 60_000_000, "HOUR": 3_600_000_000, "DAY": DAY_US, "WEEK": 7 * DAY_US,
}  # fmt: skip
_CASTS = {
    ("int64", "BIGINT"): ("{}", "int64"),
    ("bool", "BIGINT"): ("int({})", "int64"),
    ("int64", "DOUBLE"): ("float({})", "float64"),
    ("float64", "DOUBLE"): ("{}", "float64"),
    ("bool", "BOOLEAN"): ("{}", "bool"),
    ("string", "VARCHAR"): ("{}", "string"),
    ("string", "TEXT"): ("{}", "string"),
    ("timestamp", "TIMESTAMPTZ"): ("{}", "timestamp"),
}
_SQL_NAMES = {"BIGINT": "int64", "DOUBLE": "float64", "BOOLEAN": "bool", "VARCHAR": "string",
              "TEXT": "string", "TIMESTAMPTZ": "timestamp"}  # fmt: skip
_TIMES = ("timestamp", "clock")
_NUMBERS = ("int64", "float64")


def compile_scalar(node: exp.Expression, columns: Columns, emitter: Emitter) -> Value:
    """Emit what computes `node`. Raises Unsupported outside the subset."""
    if isinstance(node, exp.Column):
        return columns(node)
    for kinds, handler in _HANDLERS:
        if type(node) in kinds:
            return handler(node, lambda part: compile_scalar(part, columns, emitter), emitter)
    raise Unsupported(f"{type(node).__name__} in {node.sql('duckdb')}")


Compile = Callable[[exp.Expression], Value]
_Handler = Callable[[exp.Expression, Compile, Emitter], Value]


def strict(emitter: Emitter, template: str, operands: list[Value], dtype: str) -> Value:
    """An operation that is null when an operand is."""
    expression = template.format(*(operand.code for operand in operands))
    nullable = list(dict.fromkeys(value.code for value in operands if value.is_nullable))
    if nullable:
        test = " or ".join(f"{code} is None" for code in nullable)
        expression = f"None if {test} else {expression}"
    return Value(emitter.assign(expression), dtype, bool(nullable))


def _literal(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    if isinstance(node, exp.Null):
        return Value("None", "null", True)
    if isinstance(node, exp.Boolean):
        return Value(str(bool(node.this)), "bool", False)
    if node.is_string:
        return Value(emitter.bind(str(node.this)), "string", False)
    text = str(node.this)
    if text.isdigit() and int(text) < 2**63:
        return Value(text, "int64", False)
    if "e" in text.lower():
        return Value(repr(float(text)), "float64", False)
    raise Unsupported(f"the literal {text}: write a double with an exponent, 5e-1")


def _paren(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    return compile_(node.this)


def _arithmetic(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    left, right = compile_(node.this), compile_(node.expression)
    template = f"{{0}} {_ARITHMETIC[type(node)]} {{1}}"
    pair = (left.dtype, right.dtype)
    if left.dtype in _NUMBERS and right.dtype in _NUMBERS:
        dtype = "float64" if "float64" in pair else "int64"
    elif left.dtype in _TIMES and right.dtype == "interval" and not isinstance(node, exp.Mul):
        dtype = left.dtype
    else:
        raise Unsupported(f"{node.sql('duckdb')}: {left.dtype} and {right.dtype}")
    return strict(emitter, template, [left, right], dtype)


def _negation(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    operand = compile_(node.this)
    if operand.dtype not in _NUMBERS:
        raise Unsupported(f"{node.sql('duckdb')}: {operand.dtype} has no sign")
    return strict(emitter, "-{0}", [operand], operand.dtype)


def is_nonzero(node: exp.Expression) -> bool:
    """Whether a divisor cannot be zero: a literal, or NULLIF(…, 0)."""
    node = node.unnest()
    if isinstance(node, exp.Literal):
        return not node.is_string and float(node.this) != 0
    is_guarded = isinstance(node, exp.Nullif) and isinstance(node.expression, exp.Literal)
    return is_guarded and not node.expression.is_string and float(node.expression.this) == 0


def _division(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    left, right = compile_(node.this), compile_(node.expression)
    dtypes = {left.dtype, right.dtype}
    if not is_nonzero(node.expression) or not dtypes <= set(_NUMBERS):
        raise Unsupported(f"{node.sql('duckdb')}: the divisor may be zero")
    if isinstance(node, exp.Div):
        if "float64" not in dtypes:
            raise Unsupported(f"{node.sql('duckdb')}: a division of integers")
        return strict(emitter, "{0} / {1}", [left, right], "float64")
    if dtypes != {"int64"}:
        raise Unsupported(f"{node.sql('duckdb')}: a remainder of doubles")
    if not right.code.isdigit():
        raise Unsupported(f"{node.sql('duckdb')}: the divisor is no positive literal")
    # SQL rounds towards zero and its remainder has the dividend's sign; Python rounds down.
    sign = "//" if isinstance(node, exp.IntDiv) else "%"
    template = f"{{0}} {sign} {{1}} if {{0}} >= 0 else -(-{{0}} {sign} {{1}})"
    return strict(emitter, template, [left, right], "int64")


def _comparison(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    left, right = compile_(node.this), compile_(node.expression)
    dtypes = {left.dtype, right.dtype} - {"null"}
    if len(dtypes) > 1 and dtypes != set(_NUMBERS):
        raise Unsupported(f"{node.sql('duckdb')}: {left.dtype} compared with {right.dtype}")
    # The engine compares an integer with a double as doubles, Python exactly.
    sides = [
        f"float({{{at}}})" if len(dtypes) > 1 and side.dtype == "int64" else f"{{{at}}}"
        for at, side in enumerate((left, right))
    ]
    return strict(emitter, f" {_COMPARISONS[type(node)]} ".join(sides), [left, right], "bool")


def _connective(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    left, right = compile_(node.this), compile_(node.expression)
    _require(node, left, "bool")
    _require(node, right, "bool")
    a, b = left.code, right.code
    if not (left.is_nullable or right.is_nullable):
        word = "and" if isinstance(node, exp.And) else "or"
        return Value(emitter.assign(f"{a} {word} {b}"), "bool", False)
    # Three-valued: one decisive operand decides, else one null makes null.
    decisive = "False" if isinstance(node, exp.And) else "True"
    neutral = "True" if decisive == "False" else "False"
    code = (
        f"{decisive} if {a} is {decisive} or {b} is {decisive} "
        f"else None if {a} is None or {b} is None else {neutral}"
    )
    return Value(emitter.assign(code), "bool", True)


def _not(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    operand = compile_(node.this)
    _require(node, operand, "bool")
    return strict(emitter, "not {0}", [operand], "bool")


def _is(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    if not isinstance(node.expression, exp.Null):
        raise Unsupported(f"{node.sql('duckdb')}: IS takes NULL")
    operand = compile_(node.this)
    if not operand.is_nullable:
        return Value("False", "bool", False)
    return Value(emitter.assign(f"{operand.code} is None"), "bool", False)


def _case(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    if node.args.get("this") is not None:
        raise Unsupported("CASE with an operand: write CASE WHEN")
    arms = [(compile_(arm.this), compile_(arm.args["true"])) for arm in node.args["ifs"]]
    default = node.args.get("default")
    last = compile_(default) if default is not None else Value("None", "null", True)
    for condition, _ in arms:
        _require(node, condition, "bool")
    values = [*(value for _, value in arms), last]
    code = "".join(f"{value.code} if {test.code} else " for test, value in arms) + last.code
    return Value(
        emitter.assign(code), _common(node, values), any(value.is_nullable for value in values)
    )


def _coalesce(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    values = [compile_(part) for part in (node.this, *node.expressions)]
    dtype, code, is_nullable = _common(node, values), "None", True
    for value in reversed(values):
        if value.is_nullable:
            code = f"{value.code} if {value.code} is not None else {code}"
        else:
            code, is_nullable = value.code, False
    return Value(emitter.assign(code), dtype, is_nullable)


def _nullif(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    left, right = compile_(node.this), compile_(node.expression)
    if not (left.dtype == "float64" and right.code == "0"):
        _common(node, [left, right])
    code = f"None if {left.code} == {right.code} else {left.code}"
    return Value(emitter.assign(code), left.dtype, True)


def _in(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    options = node.expressions
    if not options or not all(isinstance(option, exp.Literal) for option in options):
        raise Unsupported(f"{node.sql('duckdb')}: IN takes a list of literals")
    operand = compile_(node.this)
    values = [compile_(option) for option in options]
    _common(node, [operand, *values])
    chosen = ", ".join(value.code for value in values)
    return strict(emitter, f"{{0}} in ({chosen},)", [operand], "bool")


def _cast(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    operand, target = compile_(node.this), node.args["to"].sql("duckdb")
    if operand.dtype == "null" and target in _SQL_NAMES:
        return Value("None", _SQL_NAMES[target], True)
    if (operand.dtype, target) not in _CASTS:
        raise Unsupported(f"CAST of {operand.dtype} AS {target}")
    template, dtype = _CASTS[operand.dtype, target]
    if template == "{}":
        return Value(operand.code, dtype, operand.is_nullable)
    return strict(emitter, template, [operand], dtype)


def _interval(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    return Value(str(interval_us(node)), "interval", False)


def interval_us(node: exp.Expression) -> int:
    """The length of a constant interval in microseconds. Raises Unsupported for any other node."""
    count, unit = node.this, node.args.get("unit")
    name = unit.name.upper().removesuffix("S") if unit is not None else ""
    if name not in _UNIT_US or not isinstance(count, exp.Literal) or not count.this.isdigit():
        raise Unsupported(f"{node.sql('duckdb')}: a whole number of minutes, hours, days, weeks")
    return int(count.this) * _UNIT_US[name]


def _clock_part(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    operand = compile_(node.this.unnest() if isinstance(node.this, exp.Paren) else node.this)
    if operand.dtype not in _TIMES:
        raise Unsupported(f"{node.sql('duckdb')}: {operand.dtype} is no time")
    if type(node) in _CLOCK_PARTS:
        return strict(emitter, _CLOCK_PARTS[type(node)], [operand], "int64")
    template = f"{emitter.bind(date.fromordinal)}({{0}} // {DAY_US} + {_DAYS_TO_1970})"
    day = strict(emitter, template, [operand], "date")
    return strict(emitter, _DATE_PARTS[type(node)], [day], "int64")


def _at_time_zone(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    instant, zone = node.this, node.args["zone"]
    return _clock(compile_(instant), compile_(zone), node, emitter)


def _anonymous(node: exp.Expression, compile_: Compile, emitter: Emitter) -> Value:
    name, arguments = str(node.this).lower(), node.expressions
    if name == "epoch_us" and len(arguments) == 1:
        operand = compile_(arguments[0])
        if operand.dtype in _TIMES:
            return Value(operand.code, "int64", operand.is_nullable)
    if name == "timezone" and len(arguments) == 2:
        return _clock(compile_(arguments[1]), compile_(arguments[0]), node, emitter)
    raise Unsupported(node.sql("duckdb"))


def _clock(instant: Value, zone: Value, node: exp.Expression, emitter: Emitter) -> Value:
    if instant.dtype != "timestamp" or zone.dtype != "string":
        raise Unsupported(f"{node.sql('duckdb')}: takes an instant and a zone")
    return strict(emitter, emitter.bind(to_clock) + "({0}, {1})", [zone, instant], "clock")


def _require(node: exp.Expression, value: Value, dtype: str) -> None:
    if value.dtype not in (dtype, "null"):
        raise Unsupported(f"{node.sql('duckdb')}: {value.dtype} where {dtype} is expected")


def _common(node: exp.Expression, values: list[Value]) -> str:
    dtypes = {value.dtype for value in values} - {"null"}
    if len(dtypes) != 1:
        raise Unsupported(f"{node.sql('duckdb')}: mixes {', '.join(sorted(dtypes)) or 'nulls'}")
    return dtypes.pop()


_HANDLERS: tuple[tuple[tuple[type[exp.Expression], ...], _Handler], ...] = (
    ((exp.Literal, exp.Boolean, exp.Null), _literal),
    ((exp.Paren,), _paren),
    ((exp.Cast,), _cast),
    (tuple(_ARITHMETIC), _arithmetic),
    ((exp.Neg,), _negation),
    ((exp.Div, exp.IntDiv, exp.Mod), _division),
    (tuple(_COMPARISONS), _comparison),
    ((exp.And, exp.Or), _connective),
    ((exp.Not,), _not),
    ((exp.Is,), _is),
    ((exp.In,), _in),
    ((exp.Case,), _case),
    ((exp.Coalesce,), _coalesce),
    ((exp.Nullif,), _nullif),
    ((exp.Interval,), _interval),
    ((*_CLOCK_PARTS, *_DATE_PARTS), _clock_part),
    ((exp.AtTimeZone,), _at_time_zone),
    ((exp.Anonymous,), _anonymous),
)
