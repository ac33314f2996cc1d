"""Running a view's certificate: adversarial and replayed requests through closure and engine.

The verdict and its store are `certificate`'s; the adversarial rows `adversarial`'s.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa

from contracts.features import ViewHeader
from services.data_fabric.adversarial import AdversarialRequests
from services.data_fabric.certificate import (
    Certificate,
    adversarial_rows,
    first_difference,
    replayed_rows,
)
from services.data_fabric.closure import Closure
from services.data_fabric.engine import Engine, EngineFailed
from services.data_fabric.engine_path import plain_columns
from services.data_fabric.evaluation import run
from services.data_fabric.field_rules import broken_limit, instant_range
from services.data_fabric.lookups import lookups_of, request_column
from services.data_fabric.online import Index
from services.data_fabric.plan import Plan
from services.data_fabric.rewrite import NEWEST, ROW
from services.data_fabric.sources import ARROW_TYPES, Source, SourceReader
from services.data_fabric.zones import instant_us

Row = dict[str, Any]


def certify(
    subject: Certificate,
    plan: Plan,
    closure: Closure,
    indexes: Sequence[Index],
    engine: Engine,
    replayed: Sequence[Row],
) -> Certificate:
    """Compare both paths and give the subject its verdict. The relations are tables of `engine`;
    `replayed` are real requests, instants in integer microseconds."""
    header = plan.view.header
    draw = AdversarialRequests(header, indexes, key_columns(plan), seed=int(subject.key[-16:], 16))
    rows = [draw.row() for _ in range(adversarial_rows)] + list(replayed)
    try:
        result = run(engine, plan, arrow_request(header, rows))
        names = list(header.request)
        found = [
            closure.values(SimpleNamespace(**{f"c{at}": row[n] for at, n in enumerate(names)}))
            for row in rows
        ]
    except (EngineFailed, ArithmeticError) as error:
        difference = f"a path failed: {error}"
    else:
        difference = first_difference(
            [*header.fields, NEWEST],
            [*(contract.dtype for contract in header.fields.values()), "int64"],
            list(zip(*found, strict=True)),
            plain_columns(result),
            lambda at: rows[at],
        )
    return msgspec.structs.replace(
        subject, adversarial=adversarial_rows, replayed=len(replayed), difference=difference
    )


def arrow_request(header: ViewHeader, rows: Sequence[Row]) -> pa.Table:
    """Requests as the numbered table that the engine reads."""
    columns = {
        name: pa.array([row[name] for row in rows], ARROW_TYPES[contract.dtype])
        for name, contract in header.request.items()
    }
    return pa.table({**columns, ROW: pa.array(range(len(rows)), pa.int64())})


def key_columns(plan: Plan) -> dict[tuple[str, tuple[str, ...]], list[str | None]]:
    """For each index the request columns that its keys are compared with, where unchanged."""
    found = {}
    for step in (*plan.steps, ""):
        for lookup in lookups_of(plan.select(step)):
            relation_keys = tuple(column for column, _ in lookup.keys)
            found[lookup.relation, relation_keys] = [
                request_column(plan, step, other) for _, other in lookup.keys
            ]
    return found


def replayed_requests(
    reader: SourceReader, header: ViewHeader, sources: Mapping[str, Source]
) -> list[Row]:
    """Real requests: rows of the first source that has all of the request's columns, evenly over
    its files, as far as they keep the contract. Empty when there is no such source."""
    columns = {name: contract.dtype for name, contract in header.request.items()}
    for source in sources.values():
        if columns.items() <= source.columns().items():
            table = pa.Table.from_batches(reader.stream(source, list(columns)).arrow)
            step = max(1, len(table) // replayed_rows)
            chosen = table.take(pa.array(range(0, len(table), step), pa.int64()))
            # In slices: one long call would keep every other thread from running.
            rows = (row for part in chosen.to_batches(256) for row in part.to_pylist())
            return [row for row in map(_integer_instants, rows) if _keeps(header, row)]
    return []


def _integer_instants(row: Row) -> Row:
    return {
        name: instant_us(value) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def _keeps(header: ViewHeader, row: Row) -> bool:
    for name, contract in header.request.items():
        value = row[name]
        if contract.dtype == "timestamp":
            limits = instant_range(contract)
            if value is None or (limits and not limits[0] <= value <= limits[1]):
                return False
        elif value is None and contract.missing == "default":
            return False  # the engine would see the null, a request its default
        elif broken_limit(contract, value) is not None:
            return False
    return True
