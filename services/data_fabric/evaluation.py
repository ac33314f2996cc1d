"""A view on the engine: its relations as tables, and its features for a table of requests.

Used by the offline path, by the online path of views outside the closure's subset, and by the
certificate. The thread that owns the engine calls these.
"""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from services.data_fabric.engine import Engine, EngineFailed, quote
from services.data_fabric.index_needs import needed_indexes
from services.data_fabric.online import index_query, not_single_valued
from services.data_fabric.plan import Plan
from services.data_fabric.refusal import SourceRefused
from services.data_fabric.rewrite import NEWEST, ROW, relation_queries, request_query
from services.data_fabric.sources import ARROW_TYPES, Source, SourceReader
from services.data_fabric.sql import REQUEST, View

Place = tuple[Path, str]
"""A folder and the pattern of files below it."""


def identify(reader: SourceReader, view: View, places: Mapping[str, Place]) -> dict[str, Source]:
    """Identify every source that the view names."""
    missing = sorted(set(view.sources) - set(places))
    if missing:
        raise SourceRefused(f"there is no source {', '.join(missing)}")
    return {name: reader.identify(name, *places[name]) for name in view.sources}


def materialise(
    engine: Engine, reader: SourceReader, plan: Plan, sources: Mapping[str, Source]
) -> None:
    """Make a table of every relation that the request's part of the view joins."""
    for name, columns in plan.source_columns.items():
        stream = reader.stream(sources[name], columns)
        try:
            engine.create_table(name, stream.arrow)
        except EngineFailed:
            if stream.error is not None:
                raise stream.error from None
            raise
    queries = relation_queries(plan)
    for name, query in queries.items():
        engine.create_table_as(name, query)
    for name in {*plan.source_columns, *queries} - set(plan.relations):
        engine.drop_table(name)


def check_single_valued(engine: Engine, plan: Plan) -> None:
    """Raise ViewRefused when a look-up could find either of two rows of a relation."""
    for (relation, keys, time), need in needed_indexes(plan).items():
        rows = index_query(relation, keys, time, need.columns)
        ordering = ", ".join(map(quote, [*keys, *([time] if time else [])]))
        count = engine.query(f"SELECT count(*) - count(DISTINCT ({ordering})) AS n FROM ({rows})")
        if count["n"][0].as_py():
            raise not_single_valued(relation, keys, time)


def request_table(view: View, request: pa.Table) -> pa.Table:
    """The request's columns in the header's order and types, with the row number."""
    schema = pa.schema(
        [(name, ARROW_TYPES[contract.dtype]) for name, contract in view.header.request.items()]
    )
    table = request.select(schema.names).cast(schema)
    return table.append_column(ROW, pa.array(range(len(table)), pa.int64()))


def feature_schema(view: View) -> pa.Schema:
    """The Arrow schema of a view's features, in the header's order."""
    return pa.schema(
        [(name, ARROW_TYPES[contract.dtype]) for name, contract in view.header.fields.items()]
    )


def run(engine: Engine, plan: Plan, request: pa.Table) -> pa.Table:
    """Features of a numbered request table and the newest event time used (NEWEST, microseconds),
    where the relations are tables already."""
    engine.create_table(REQUEST, request)
    result = engine.query(request_query(plan), plan.view.header.name)
    return checked_result(plan, result, len(request))


def checked_result(plan: Plan, result: pa.Table, rows: int) -> pa.Table:
    """The result's columns in the header's order and types. Raises EngineFailed when a join did
    not keep one row a request."""
    if len(result) != rows:
        raise EngineFailed(
            f"{rows} request rows gave {len(result)}: a relation's key is not unique"
        )
    schema = feature_schema(plan.view).append(pa.field(NEWEST, pa.int64()))
    return result.select(schema.names).cast(schema)
