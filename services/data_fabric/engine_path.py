"""Online features on the engine, for views outside the closure's subset: one prepared statement
over a relation whose table is swapped.
"""

from typing import Any

import pyarrow as pa

from services.data_fabric.config import request_timeout_s
from services.data_fabric.engine import Engine
from services.data_fabric.evaluation import checked_result
from services.data_fabric.online import NEVER
from services.data_fabric.plan import Plan
from services.data_fabric.rewrite import NEWEST, ROW, request_query
from services.data_fabric.sources import ARROW_TYPES
from services.data_fabric.sql import REQUEST

_STATEMENT = "features"


class _Swapped:
    """The relation `request`: whatever table it holds when the engine reads it. The schema is
    always the contract's, so the prepared statement stays valid."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class EnginePath:
    """The statement of one view. One thread at a time."""

    def __init__(self, engine: Engine, plan: Plan) -> None:
        self._engine = engine
        self._plan = plan
        self._schema = pa.schema(
            [
                *((n, ARROW_TYPES[c.dtype]) for n, c in plan.view.header.request.items()),
                (ROW, pa.int64()),
            ]
        )
        engine.drop_table(REQUEST)
        self._request = _Swapped(self._schema.empty_table())
        engine.register(REQUEST, self._request)
        engine.prepare(_STATEMENT, request_query(plan))
        engine.timeout_s = request_timeout_s

    def compute(self, rows: list[Any]) -> list[tuple[Any, ...]]:
        """The features of decoded rows and the newest event time of each, as the closure gives
        them. Raises EngineFailed."""
        columns = [
            pa.array([getattr(row, f"c{at}") for row in rows], type_)
            for at, type_ in enumerate(self._schema.types[:-1])
        ]
        numbers = pa.array(range(len(rows)), pa.int64())
        self._request.table = pa.Table.from_arrays([*columns, numbers], schema=self._schema)
        result = self._engine.query(f"EXECUTE {_STATEMENT}", self._plan.view.header.name)
        return plain_rows(checked_result(self._plan, result, len(rows)))

    def close(self) -> None:
        """Give the engine's memory back."""
        self._engine.close()


def plain_columns(table: pa.Table) -> list[list[Any]]:
    """A result's columns as Python values; instants are integer microseconds, and a row that met
    no event has NEVER."""
    columns = []
    for field in table.schema:
        column = table[field.name]
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.int64())
        if field.name == NEWEST:
            column = column.fill_null(NEVER)
        columns.append(column.to_pylist())
    return columns


def plain_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """A result's rows, as `plain_columns` gives the values."""
    return list(zip(*plain_columns(table), strict=True))
