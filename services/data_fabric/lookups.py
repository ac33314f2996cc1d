"""A step's join, read as a look-up: which relation, by which key, and as of which instant.

An equality look-up finds the row with that key. An AS-OF look-up finds, among the rows with that
key, the last one before its bound. Other joins are not look-ups and are refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from services.data_fabric.plan import Plan
from services.data_fabric.refusal import Finding, ViewRefused
from services.data_fabric.sql import REQUEST, line_of

_BEFORE: dict[type[exp.Expression], bool] = {exp.LT: False, exp.LTE: True}
_AFTER: dict[type[exp.Expression], bool] = {exp.GT: False, exp.GTE: True}


@dataclass(frozen=True, slots=True)
class Lookup:
    """`keys` pairs a column of the relation with the expression it must equal. With a `time`
    column it is an AS-OF look-up: the greatest time before `bound`, or at it if inclusive."""

    alias: str
    relation: str
    keys: tuple[tuple[str, exp.Expression], ...]
    time: str | None
    bound: exp.Expression | None
    is_inclusive: bool


def lookups_of(select: exp.Select) -> Iterator[Lookup]:
    """The look-ups of a step in order. Raises ViewRefused at the first join that is none."""
    for join in select.args.get("joins") or ():
        yield read_join(join)


def read_join(join: exp.Join) -> Lookup:
    """One join as a look-up. Raises ViewRefused with its line."""
    line = line_of(join)
    is_asof = join.args.get("method") == "ASOF"
    if not isinstance(join.this, exp.Table) or join.args.get("side") != "LEFT":
        raise ViewRefused(
            [Finding(line, "a step joins by LEFT JOIN or ASOF LEFT JOIN, so that no row is lost")]
        )
    if join.args.get("using") or join.args.get("on") is None:
        raise ViewRefused.of("write the join's condition with ON", line)
    alias, keys, times = join.this.alias_or_name, [], []
    for condition in join.args["on"].flatten() if _is_and(join) else [join.args["on"]]:
        side = _sides(condition, alias)
        if side is None:
            text = condition.sql("duckdb")
            reason = f"{text}: compare a column of {alias} with what stands before the join"
            raise ViewRefused.of(reason, line)
        column, other, kind, is_inclusive = side
        if kind == "equal":
            keys.append((column, other))
        else:
            times.append((column, other, is_inclusive))
    if len(times) != int(is_asof) or not keys:
        reason = (
            "a LEFT JOIN compares keys by =; an ASOF LEFT JOIN also compares one time of the "
            "relation, before or at the bound"
        )
        raise ViewRefused.of(reason, line)
    time, bound, is_inclusive = times[0] if times else (None, None, False)
    return Lookup(alias, join.this.name, tuple(keys), time, bound, is_inclusive)


def _is_and(join: exp.Join) -> bool:
    return isinstance(join.args["on"], exp.And)


def _sides(condition: exp.Expression, alias: str) -> tuple[str, exp.Expression, str, bool] | None:
    """(column of alias, the other side, "equal" or "before", inclusive), or None."""
    if not isinstance(condition, exp.Binary):
        return None
    for ours, other, before in (
        (condition.this, condition.expression, _BEFORE),
        (condition.expression, condition.this, _AFTER),
    ):
        is_ours = isinstance(ours, exp.Column) and ours.table == alias
        if not is_ours or any(column.table == alias for column in other.find_all(exp.Column)):
            continue
        if isinstance(condition, exp.EQ):
            return ours.name, other, "equal", False
        if type(condition) in before:
            return ours.name, other, "before", before[type(condition)]
    return None


def request_column(plan: Plan, step: str, column: exp.Expression) -> str | None:
    """The request's column that an expression of a step stands for unchanged, or None."""
    if not isinstance(column, exp.Column):
        return None
    above = plan.select(step).args["from_"].this
    if column.table != above.alias_or_name:
        return None
    if above.name == REQUEST:
        return str(column.name)
    for projection in plan.select(above.name).expressions:
        if projection.alias_or_name == column.name:
            return request_column(plan, above.name, projection.unalias())
    return None
