"""A view's query rewritten for the engine: the relations one by one, then the request's part.

Both paths that use the engine run these texts. The request's part carries two hidden columns: the
row's number, which brings the result into the request's order, and the newest event time used.
"""

from sqlglot import exp

from services.data_fabric.lookups import lookups_of
from services.data_fabric.plan import Plan
from services.data_fabric.sql import REQUEST, common_tables

ROW = "__row"
NEWEST = "__newest"
"""Followed by the step's name, because a step may hand on all columns of the one before it."""


def relation_queries(plan: Plan) -> dict[str, str]:
    """The SQL of every table expression that does not read the request, in order of definition;
    each may read the sources and those before it."""
    return {
        name: query.sql("duckdb", comments=False)
        for name, query in common_tables(plan.view.tree).items()
        if name not in plan.steps
    }


def request_query(plan: Plan) -> str:
    """The SQL of the steps, where everything that they join is a table."""
    tree = plan.view.tree.copy()
    with_ = tree.args.get("with_")
    if with_ is not None:
        kept = [cte for cte in with_.expressions if cte.alias in plan.steps]
        tree.set("with_", exp.With(expressions=kept) if kept else None)
    tables = common_tables(tree)
    for step in (*plan.steps, ""):
        select = tables[step] if step else tree
        assert isinstance(select, exp.Select), "bind admits SELECTs alone as steps"
        above = select.args["from_"].this
        select.select(exp.column(ROW, table=above.alias_or_name), copy=False)
        select.select(exp.alias_(_newest(plan, step, above), NEWEST + step), copy=False)
    return str(tree.order_by(exp.column(ROW), copy=False).sql("duckdb", comments=False))


def _newest(plan: Plan, step: str, above: exp.Table) -> exp.Expression:
    """The newest of what the step's look-ups and those of the steps before it found. GREATEST
    passes over nulls, so it is null only when nothing was found."""
    found: list[exp.Expression] = [
        exp.func("epoch_us", exp.column(lookup.time, table=lookup.alias))
        for lookup in lookups_of(plan.select(step))
        if lookup.time is not None
    ]
    if above.name != REQUEST:
        found.append(exp.column(NEWEST + above.name, table=above.alias_or_name))
    if not found:
        return exp.cast(exp.null(), "BIGINT")
    return (
        found[0]
        if len(found) == 1
        else exp.Greatest(this=found[0], expressions=found[1:], ignore_nulls=True)
    )
