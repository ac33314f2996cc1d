"""A view's query, split at the request.

Invariant: every step (a SELECT that reads `request`) yields exactly one row for each request row,
because it only LEFT JOINs relations that are single-valued per key. So the request's part of the
query is a chain of steps, and everything else is a relation that does not depend on the request
and is computed once for a state of the sources.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.annotate_types import annotate_types
from sqlglot.optimizer.qualify import qualify

from services.data_fabric.engine import sql_type
from services.data_fabric.refusal import ViewRefused
from services.data_fabric.sql import REQUEST, View, common_tables, tables_read

Schemas = Mapping[str, Mapping[str, str]]
"""Dtype by column by source."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`tree` has every column qualified, every star expanded, and types annotated where the parser
    can tell. `event_sources` are the sources with an instant in them. `steps` are the names of
    the common table expressions that read the request, in order; the outermost SELECT comes after
    them. `relations` are what steps join: common table expressions and sources."""

    view: View
    tree: exp.Select
    source_columns: dict[str, tuple[str, ...]]
    event_sources: frozenset[str]
    steps: tuple[str, ...]
    relations: tuple[str, ...]

    def select(self, step: str) -> exp.Select:
        """The SELECT of a step; the empty name is the outermost one."""
        found = common_tables(self.tree)[step] if step else self.tree
        assert isinstance(found, exp.Select), "bind admits SELECTs alone as steps"
        return found


def bind(view: View, schemas: Schemas) -> Plan:
    """The plan of a view over sources with these columns. Raises ViewRefused."""
    tree = _qualified(view, schemas)
    tables = common_tables(tree)
    steps = _steps(tables)
    for step in (*steps, ""):
        if not isinstance(tables[step] if step else tree, exp.Select):
            raise ViewRefused.of(f"{step}: what reads the request is one SELECT")
    joined = {
        join.this.name
        for step in (*steps, "")
        for join in (tables[step] if step else tree).args.get("joins") or ()
    }
    source_columns = _source_columns(tree, view.sources)
    for source, columns in source_columns.items():
        if not columns:
            raise ViewRefused.of(f"the query reads no column of {source}")
    return Plan(
        view=view,
        tree=tree,
        source_columns=source_columns,
        event_sources=frozenset(
            source for source in view.sources if "timestamp" in schemas[source].values()
        ),
        steps=steps,
        relations=tuple(sorted(joined - set(steps) - {REQUEST})),
    )


def _qualified(view: View, schemas: Schemas) -> exp.Select:
    header = {name: contract.dtype for name, contract in view.header.request.items()}
    schema = {
        table: {column: sql_type(dtype) for column, dtype in columns.items()}
        for table, columns in {**schemas, REQUEST: header}.items()
    }
    try:
        tree = qualify(view.tree.copy(), schema=schema, dialect="duckdb", quote_identifiers=False)
    except SqlglotError as error:
        raise ViewRefused.of(f"the query does not fit the sources: {error}") from error
    assert isinstance(tree, exp.Select), "a qualified SELECT is a SELECT"
    annotate_types(tree, schema=schema, dialect="duckdb")
    return tree


def _steps(tables: Mapping[str, exp.Expression]) -> tuple[str, ...]:
    steps: list[str] = []
    for name, query in tables.items():
        if tables_read(query) & {REQUEST, *steps}:
            steps.append(name)
    return tuple(steps)


def _source_columns(tree: exp.Select, sources: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The columns that the query reads of each source."""
    used: dict[str, set[str]] = {source: set() for source in sources}
    for select in tree.find_all(exp.Select):
        aliases = {table.alias_or_name: table.name for table in tables_of(select)}
        for column in select.find_all(exp.Column):
            source = aliases.get(column.table)
            if source in used and column.find_ancestor(exp.Select) is select:
                used[source].add(column.name)
    return {source: tuple(sorted(columns)) for source, columns in used.items()}


def tables_of(select: exp.Select) -> list[exp.Table]:
    """The tables of a SELECT's own FROM and joins."""
    from_ = select.args.get("from_")
    joins = select.args.get("joins") or []
    places = ([from_.this] if from_ is not None else []) + [join.this for join in joins]
    return [place for place in places if isinstance(place, exp.Table)]
