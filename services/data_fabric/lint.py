"""What a view's SQL must not say, because it would not mean the same everywhere and always.

Each rule looks at one node of the qualified tree and gives a reason or None. Rules about time, and
about which joins keep one row a request, are in `point_in_time`.
"""

from collections.abc import Iterator
from itertools import zip_longest

from sqlglot import exp

from services.data_fabric.engine import sql_type
from services.data_fabric.expressions import is_nonzero
from services.data_fabric.plan import Plan, tables_of
from services.data_fabric.point_in_time import check_time
from services.data_fabric.refusal import Finding, ViewRefused
from services.data_fabric.sql import common_tables, line_of

_FUNCTIONS: tuple[type[exp.Expression], ...] = (
    exp.And, exp.Or, exp.Cast, exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Greatest,
    exp.Least, exp.Abs, exp.Floor, exp.Ceil, exp.Round, exp.Sqrt, exp.Ln, exp.Exp, exp.Hour,
    exp.Minute, exp.Second, exp.Day, exp.Month, exp.Quarter, exp.Year, exp.DayOfYear,
    exp.DayOfWeekIso, exp.Extract, exp.Length, exp.Trim, exp.Substring, exp.StartsWith,
    exp.Sum, exp.Count, exp.Avg, exp.Min, exp.Max, exp.Lag, exp.RowNumber, exp.FirstValue,
    exp.LastValue,
)  # fmt: skip
_NAMED = ("epoch_us", "timezone", "to_days", "to_hours", "to_minutes", "to_seconds")
_UNREPEATABLE: tuple[type[exp.Expression], ...] = (
    exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.CurrentDatetime, exp.Rand,
)  # fmt: skip
_UNREPEATABLE_NAMES = ("now", "random", "uuid", "gen_random_uuid", "today", "transaction_timestamp")
_INTEGERS = ("BIGINT", "INT", "INTEGER", "SMALLINT", "TINYINT", "HUGEINT")
_DOUBLES = (exp.DataType.Type.DOUBLE, exp.DataType.Type.FLOAT)
_WEEKDAYS = ("dow", "dayofweek", "weekday")


def check_plan(plan: Plan) -> None:
    """Raise ViewRefused with every finding, each with its line."""
    findings = [*_check_shape(plan), *_check_outputs(plan), *check_time(plan)]
    for node in plan.tree.walk():
        findings += [
            Finding(line_of(node), reason) for rule in _RULES if (reason := rule(node)) is not None
        ]
    if findings:
        raise ViewRefused(findings)


def _check_shape(plan: Plan) -> Iterator[Finding]:
    tree, tables = plan.view.tree, common_tables(plan.view.tree)
    with_ = tree.args.get("with_")
    if with_ is not None and with_.args.get("recursive"):
        yield Finding(line_of(with_), "WITH RECURSIVE: history is a window, not a recursion")
    for place in tree.find_all(exp.With):
        if place is not with_:
            yield Finding(line_of(place), "a WITH inside a query: put it into the view's own WITH")
    for star in tree.find_all(exp.Star):
        if isinstance(star.parent, exp.Count):
            continue
        if _starred(star) - set(tables):
            yield Finding(line_of(star), "* over a source: name its columns, files may gain some")


def _starred(star: exp.Star) -> set[str]:
    """The relations whose columns a star stands for."""
    select = star.find_ancestor(exp.Select)
    assert isinstance(select, exp.Select), "a star outside COUNT stands in a SELECT"
    relations = {table.alias_or_name: table.name for table in tables_of(select)}
    qualifier = star.parent.table if isinstance(star.parent, exp.Column) else ""
    return {relations.get(qualifier, qualifier)} if qualifier else set(relations.values())


def _check_outputs(plan: Plan) -> Iterator[Finding]:
    fields = plan.view.header.fields
    outputs = {part.alias_or_name: part for part in plan.tree.expressions}
    if list(outputs) != list(fields):
        pairs = zip_longest(outputs, fields)
        selected, declared = next(pair for pair in pairs if pair[0] != pair[1])
        yield Finding(
            line_of(outputs.get(selected, plan.tree)),
            f"the query selects {selected or 'nothing more'} where the header's fields have "
            f"{declared or 'nothing more'}: same names, same order",
        )
    for name, part in outputs.items():
        node = part.unalias()
        wanted = sql_type(fields[name].dtype) if name in fields else None
        if not isinstance(node, exp.Cast) or isinstance(node, exp.TryCast):
            yield Finding(line_of(part), f"{name}: an output is an explicit CAST to its dtype")
        elif wanted and exp.DataType.build(wanted, dialect="duckdb") != node.to:
            yield Finding(line_of(part), f"{name}: CAST to {wanted}, the header's dtype")


def _functions(node: exp.Expression) -> str | None:
    if isinstance(node, exp.Anonymous):
        name = str(node.this).lower()
        if name in _UNREPEATABLE_NAMES:
            return f"{name}(): a feature depends on the request and its sources alone"
        if name in _WEEKDAYS:
            return f"{name}(): engines number weekdays differently, use isodow()"
        return None if name in _NAMED else f"the function {name}() is not on the list of allowed"
    if isinstance(node, _UNREPEATABLE):
        return f"{node.sql('duckdb')}: a feature depends on the request and its sources alone"
    if isinstance(node, exp.DayOfWeek):
        return "DOW: engines number weekdays differently, use isodow()"
    if isinstance(node, exp.Upper | exp.Lower):
        return "UPPER and LOWER differ beyond ASCII: take the text as its owner writes it"
    if isinstance(node, exp.Log):
        return "LOG: engines disagree about its base, use ln()"
    if isinstance(node, exp.Func) and not isinstance(node, _FUNCTIONS):
        return f"the function {node.sql_name()}() is not on the list of allowed"
    return None


def _extract(node: exp.Expression) -> str | None:
    if isinstance(node, exp.Extract) and node.this.name.lower() in _WEEKDAYS:
        return "DOW: engines number weekdays differently, use ISODOW"
    return None


def _division(node: exp.Expression) -> str | None:
    if not isinstance(node, exp.Div | exp.IntDiv | exp.Mod):
        return None
    if not is_nonzero(node.expression):
        return f"{node.sql('duckdb')}: the divisor may be zero, wrap it in NULLIF(…, 0)"
    if isinstance(node, exp.Div) and not (_is_double(node.this) or _is_double(node.expression)):
        return f"{node.sql('duckdb')}: integers divide differently, CAST one AS DOUBLE"
    return None


def _is_double(node: exp.Expression) -> bool:
    return node.type is not None and node.type.this in _DOUBLES


def _cast(node: exp.Expression) -> str | None:
    if isinstance(node, exp.TryCast):
        return "TRY_CAST hides values that break the contract: CAST"
    if not isinstance(node, exp.Cast) or node.to.sql("duckdb") not in _INTEGERS:
        return None
    rounded = isinstance(node.this, exp.Floor | exp.Ceil | exp.Round)
    if _is_double(node.this) and not rounded:
        return f"{node.sql('duckdb')}: engines round differently, use FLOOR first"
    return None


def _literal(node: exp.Expression) -> str | None:
    if not isinstance(node, exp.Literal) or node.is_string or "." not in node.this:
        return None
    if "e" in node.this.lower() or isinstance(node.parent, exp.Cast):
        return None
    return f"{node.this} is a decimal in one engine and a double in another: CAST it or write e0"


def _extremes(node: exp.Expression) -> str | None:
    if not isinstance(node, exp.Greatest | exp.Least):
        return None
    for part in (node.this, *node.expressions):
        if not _is_never_null(part):
            return (
                f"{node.sql('duckdb')}: engines treat nulls differently, use COALESCE(…, literal)"
            )
    return None


def _is_never_null(node: exp.Expression) -> bool:
    node = node.unnest()
    if isinstance(node, exp.Coalesce):
        return isinstance(node.expressions[-1].unnest(), exp.Literal)
    if isinstance(node, exp.Cast):
        return _is_never_null(node.this)
    return isinstance(node, exp.Literal) or (
        isinstance(node, exp.Neg) and _is_never_null(node.this)
    )


def _substring(node: exp.Expression) -> str | None:
    if not isinstance(node, exp.Substring):
        return None
    start = node.args.get("start")
    if isinstance(start, exp.Literal) and start.this.isdigit() and int(start.this) >= 1:
        return None
    return "SUBSTR with a start below 1, or one that is no literal, differs between engines"


def _sum(node: exp.Expression) -> str | None:
    if not isinstance(node, exp.Sum):
        return None
    outer = node.parent.parent if isinstance(node.parent, exp.Window) else node.parent
    if isinstance(outer, exp.Cast):
        return None
    return f"{node.sql('duckdb')}: a sum outgrows its type differently, CAST it AS BIGINT or DOUBLE"


_RULES = (_functions, _extract, _division, _cast, _literal, _extremes, _substring, _sum)
