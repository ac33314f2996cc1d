"""The offline path: a view's text over a whole relation of requests, for training and proofs.

The same text as online, run by the engine over the same sources. Rows come back in the order of
the request and columns in the order of the header.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from services.data_fabric.config import offline_rows
from services.data_fabric.engine import Engine
from services.data_fabric.evaluation import (
    check_single_valued,
    feature_schema,
    identify,
    materialise,
    request_table,
    run,
)
from services.data_fabric.lint import check_plan
from services.data_fabric.plan import bind
from services.data_fabric.rewrite import NEWEST
from services.data_fabric.sources import SourceReader
from services.data_fabric.sql import View, parse


def features(view_sql: str, sources: Mapping[str, Path], request: pa.Table) -> pa.Table:
    """The view's features for every row of `request`, as of the row's own event time.

    `sources` maps each source's name to the pattern of its files, for example
    `home / "data/flights-*.parquet"`. `request` has the columns of the header's `[request]`
    (others are ignored); integers are widened, instants need a time zone. Raises ViewRefused,
    SourceRefused or EngineFailed.
    """
    view = parse(view_sql)
    return pa.Table.from_batches(_batches(view, sources, request), feature_schema(view))


def feature_batches(
    view_sql: str, sources: Mapping[str, Path], request: pa.Table
) -> Iterator[pa.RecordBatch]:
    """What `features` returns, in batches of at most `config.offline_rows` request rows."""
    return _batches(parse(view_sql), sources, request)


def _batches(
    view: View, sources: Mapping[str, Path], request: pa.Table
) -> Iterator[pa.RecordBatch]:
    reader = SourceReader()
    places = {name: (pattern.parent, pattern.name) for name, pattern in sources.items()}
    found = identify(reader, view, places)
    plan = bind(view, {name: source.columns() for name, source in found.items()})
    check_plan(plan)
    engine = Engine()
    try:
        materialise(engine, reader, plan, found)
        check_single_valued(engine, plan)
        table = request_table(view, request)
        for start in range(0, len(table), offline_rows):
            batch = run(engine, plan, table.slice(start, offline_rows)).drop_columns(NEWEST)
            yield from batch.combine_chunks().to_batches()
    finally:
        engine.close()
