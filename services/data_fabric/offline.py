"""The offline path: a view's text over a whole relation of requests, for training and proofs.

The same text as online, run by the engine over the same sources. Rows come back in the order of
the request and columns in the order of the header.
"""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from services.data_fabric.config import offline_rows
from services.data_fabric.engine import Engine
from services.data_fabric.plan import ROW, Plan, bind, relation_queries, request_part
from services.data_fabric.refusal import SourceRefused
from services.data_fabric.sql import REQUEST, View, parse
from services.data_fabric.sources import ARROW_TYPES, Source, SourceReader


def features(view_sql: str, sources: Mapping[str, Path], request: pa.Table) -> pa.Table:
    """The view's features for every row of `request`, as of the row's own event time.

    `sources` maps each source's name to the pattern of its files, for example
    `home / "data/flights-*.parquet"`. `request` has the columns of the header's `[request]`
    (others are ignored); integers are widened, instants need a time zone. Raises ViewRefused,
    SourceRefused or EngineFailed.
    """
    view = parse(view_sql)
    reader = SourceReader()
    found = identify(reader, view, sources)
    plan = bind(view, {name: source.columns() for name, source in found.items()})
    engine = Engine()
    try:
        materialise(engine, reader, plan, found)
        table = request_table(view, request)
        batches = [
            run(engine, plan, table.slice(start, offline_rows))
            for start in range(0, max(len(table), 1), offline_rows)
        ]
    finally:
        engine.close()
    return pa.concat_tables(batches)


def identify(reader: SourceReader, view: View, patterns: Mapping[str, Path]) -> dict[str, Source]:
    """Identify every source that the view names."""
    missing = sorted(set(view.sources) - set(patterns))
    if missing:
        raise SourceRefused(f"there is no source {', '.join(missing)}")
    return {
        name: reader.identify(name, patterns[name].parent, patterns[name].name)
        for name in view.sources
    }


def materialise(
    engine: Engine, reader: SourceReader, plan: Plan, sources: Mapping[str, Source]
) -> None:
    """Make a table of every relation that the request's part of the view joins."""
    for name, columns in plan.source_columns.items():
        engine.create_table(name, reader.batches(sources[name], columns))
    queries = relation_queries(plan)
    for name, query in queries.items():
        engine.create_table_as(name, query)
    for name in {*plan.source_columns, *queries} - set(plan.relations):
        engine.drop_table(name)


def request_table(view: View, request: pa.Table) -> pa.Table:
    """The request's columns in the header's order and types, with the row number."""
    schema = pa.schema(
        [(name, ARROW_TYPES[contract.dtype]) for name, contract in view.header.request.items()]
    )
    table = request.select(schema.names).cast(schema)
    return table.append_column(ROW, pa.array(range(len(table)), pa.int64()))


def run(engine: Engine, plan: Plan, request: pa.Table) -> pa.Table:
    """Features of a numbered request table, where the relations are tables already."""
    engine.create_table(REQUEST, request)
    query = request_part(plan).sql("duckdb", comments=False)
    result = engine.query(query, plan.view.header.name)
    assert len(result) == len(request), "every step keeps one row per request row"
    schema = pa.schema(
        [(name, ARROW_TYPES[contract.dtype]) for name, contract in plan.view.header.fields.items()]
    )
    return result.select(schema.names).cast(schema)
