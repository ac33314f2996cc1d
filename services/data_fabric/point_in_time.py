"""No value from after the event, and one row a request: what a view's queries must look like.

A relation is a history when it comes from a source with instants in it. What a view can see of a
history at a request is what an AS-OF look-up finds before the request's event time, so nothing in
a history's own query may carry a later row's value into an earlier one.
"""

from collections.abc import Iterator

from sqlglot import exp

from services.data_fabric.lookups import Lookup, read_join, request_column
from services.data_fabric.plan import Plan
from services.data_fabric.refusal import Finding, ViewRefused
from services.data_fabric.sql import common_tables, line_of, tables_read

_CLAUSES = {
    "where": "WHERE loses rows", "group": "GROUP BY joins rows", "having": "HAVING loses rows",
    "qualify": "QUALIFY loses rows", "distinct": "DISTINCT joins rows", "limit": "LIMIT loses rows",
    "offset": "OFFSET loses rows", "order": "the result has the request's order",
    "windows": "a window sees other requests", "laterals": "LATERAL makes rows",
    "sample": "a sample loses rows",
}  # fmt: skip
_INSTANTS = (exp.DataType.Type.TIMESTAMPTZ,)
_ORDERED = (exp.Lag, exp.RowNumber, exp.FirstValue, exp.LastValue)


def check_time(plan: Plan) -> Iterator[Finding]:
    """What is wrong with the steps, their look-ups, and the histories that they look into."""
    tables = common_tables(plan.tree)
    histories = set(plan.event_sources)
    for name, query in tables.items():
        if name in plan.steps:
            continue
        if tables_read(query) & histories:
            histories.add(name)
            yield from _check_history(name, query, histories)
    for step in (*plan.steps, ""):
        yield from _check_step(plan, step, histories)


def _check_step(plan: Plan, step: str, histories: set[str]) -> Iterator[Finding]:
    select = plan.select(step)
    for clause, reason in _CLAUSES.items():
        if select.args.get(clause):
            yield Finding(
                line_of(select), f"a query over the request has one row a request: {reason}"
            )
    for node in select.find_all(exp.AggFunc, exp.Window, exp.Subquery, exp.Exists):
        if node.find_ancestor(exp.Select) is not select:
            continue
        yield Finding(line_of(node), f"{node.sql('duckdb')}: not in a query over the request")
    from_ = select.args.get("from_")
    if from_ is None or from_.this.name not in {"request", *plan.steps}:
        yield Finding(line_of(select), "what reads the request begins FROM it, and joins the rest")
        return
    for join in select.args.get("joins") or ():
        try:
            lookup = read_join(join)
        except ViewRefused as refused:
            yield from refused.findings
            continue
        yield from _check_lookup(plan, step, lookup, line_of(join), histories)


def _check_lookup(
    plan: Plan, step: str, lookup: Lookup, line: int, histories: set[str]
) -> Iterator[Finding]:
    if lookup.relation in {"request", *plan.steps}:
        yield Finding(line, f"{lookup.relation} joined to itself sees other requests")
    if lookup.time is None:
        if lookup.relation in histories:
            yield Finding(
                line,
                f"{lookup.relation} is a history: joined by equality alone it shows what came "
                "after the request, use ASOF LEFT JOIN",
            )
        return
    event_time = plan.view.header.event_time
    bound = lookup.bound
    if isinstance(bound, exp.Sub) and isinstance(bound.expression, exp.Interval):
        bound = bound.this
    if bound is None or request_column(plan, step, bound) != event_time:
        yield Finding(
            line,
            f"{lookup.alias}: look before the request's {event_time}, or before it minus an "
            "interval; anything else may show what came after",
        )
    elif lookup.is_inclusive:
        yield Finding(line, f"{lookup.alias}: <= shows what happens at {event_time}, use <")


def _check_history(name: str, query: exp.Expression, histories: set[str]) -> Iterator[Finding]:
    line = line_of(query)
    if not isinstance(query, exp.Select):
        yield Finding(line, f"{name}: a history is one SELECT")
        return
    if any(part is not query for part in query.find_all(exp.Select)):
        yield Finding(line, f"{name}: no query inside a history, name it in the WITH")
    if len(tables_read(query) & (histories - {name})) > 1 or query.args.get("joins"):
        yield Finding(line, f"{name}: a history reads one relation; a join can reach later rows")
    if query.args.get("limit") or query.args.get("distinct"):
        yield Finding(line, f"{name}: LIMIT and DISTINCT choose rows by what comes later")
    groups = query.args.get("group")
    if groups is not None and not any(map(_is_instant, groups.expressions)):
        yield Finding(line_of(groups), f"{name}: GROUP BY an instant, else it sums up the future")
    named = {window.name: window for window in query.args.get("windows") or ()}
    for aggregate in query.find_all(exp.AggFunc):
        if groups is None and not isinstance(aggregate.parent, exp.Window):
            yield Finding(line_of(aggregate), f"{name}: {aggregate.sql('duckdb')} sees the future")
    for window in query.find_all(exp.Window):
        if isinstance(window.parent, exp.Select):
            continue
        yield from _check_window(name, window, named.get(window.alias, window))


def _check_window(name: str, window: exp.Window, frame: exp.Window) -> Iterator[Finding]:
    line = line_of(window)
    order = frame.args.get("order")
    keys = order.expressions if order is not None else []
    if isinstance(window.this, exp.Lead):
        yield Finding(line, f"{name}: LEAD is a value from the future")
    if not keys or keys[0].args.get("desc") or not _is_instant(keys[0].this):
        yield Finding(line, f"{name}: a window is ordered by an ascending instant first")
    spec = frame.args.get("spec")
    if spec is not None:
        if spec.args.get("kind") == "ROWS":
            yield Finding(line, f"{name}: a ROWS frame cuts through rows of one instant, use RANGE")
        if spec.args.get("end") not in ("CURRENT ROW", None):
            yield Finding(line, f"{name}: the frame ends at CURRENT ROW, else it sees the future")
    if isinstance(window.this, _ORDERED) and len(keys) < 2:
        yield Finding(
            line, f"{name}: {window.this.sql_name()} needs an order that is unique: add an id"
        )


def _is_instant(node: exp.Expression) -> bool:
    return node.type is not None and node.type.this in _INSTANTS
