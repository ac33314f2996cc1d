"""From which source columns a feature comes, read off the view's parse tree."""

from sqlglot import exp

from services.data_fabric.plan import Plan, tables_of
from services.data_fabric.sql import common_tables

_CLAUSES = ("where", "group", "having", "windows")


def feature_columns(plan: Plan) -> dict[str, list[str]]:
    """For each feature the `source.column` names that it depends on, sorted: through expressions,
    the keys and times of look-ups, and what selects or orders a relation's rows. The request's
    columns are those of `request`."""
    tracer = _Tracer(plan)
    return {name: sorted(tracer.columns("", name)) for name in plan.view.header.fields}


class _Tracer:
    """Follows columns from a SELECT to the relations below it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._tables = common_tables(plan.tree)
        self._known: dict[tuple[str, str], frozenset[str]] = {}

    def columns(self, relation: str, column: str) -> frozenset[str]:
        """What a column of a relation comes from; the empty name is the outermost SELECT."""
        select = self._tables[relation] if relation else self._plan.tree
        if (relation, column) not in self._known:
            self._known[relation, column] = frozenset(self._trace(select, column))
        return self._known[relation, column]

    def _trace(self, select: exp.Expression, column: str) -> set[str]:
        assert isinstance(select, exp.Select), "relations are SELECTs"
        relations = {table.alias_or_name: table.name for table in tables_of(select)}
        projections = {part.alias_or_name: part for part in select.expressions}
        clauses = [select.args[clause] for clause in _CLAUSES if select.args.get(clause)]
        nodes = [projections[column], *_flat(clauses)]
        joins = {
            join.this.alias_or_name: join.args.get("on") for join in select.args.get("joins") or ()
        }
        found: set[str] = set()
        seen: set[str] = set()
        while nodes:
            for part in nodes.pop().find_all(exp.Column):
                relation = relations[part.table]
                if relation in self._tables:
                    found |= self.columns(relation, part.name)
                else:
                    found.add(f"{relation}.{part.name}")
                if part.table not in seen and joins.get(part.table) is not None:
                    seen.add(part.table)
                    nodes.append(joins[part.table])
        return found


def _flat(clauses: list[object]) -> list[exp.Expression]:
    found: list[exp.Expression] = []
    for clause in clauses:
        found += clause if isinstance(clause, list) else [clause]
    return found
