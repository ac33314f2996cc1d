"""Online features on the engine: for views outside the closure's subset.

One prepared statement over a source whose table is swapped, run by one thread. Requests that wait
while it runs are taken together: 32 rows cost what one costs.
"""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from contracts.errors import MeshError
from services.data_fabric.config import engine_batch_rows, engine_waiting_rows_max
from services.data_fabric.engine import Engine, EngineFailed
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


class EngineQueue:
    """Micro-batches for one EnginePath; belongs to the loop's thread."""

    def __init__(self, path: EnginePath) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._waiting: deque[tuple[list[Any], asyncio.Future[list[tuple[Any, ...]]]]] = deque()
        self._waiting_rows = 0
        self._runner: asyncio.Task[None] | None = None

    async def compute(self, rows: list[Any]) -> list[tuple[Any, ...]]:
        """The features of one request's rows. Raises MeshError."""
        if self._waiting_rows + len(rows) > engine_waiting_rows_max:
            raise MeshError(
                "OVERLOADED",
                f"{self._waiting_rows} rows wait for the engine, "
                f"engine_waiting_rows_max is {engine_waiting_rows_max}",
                retry_after_ms=50,
            )
        future: asyncio.Future[list[tuple[Any, ...]]] = asyncio.get_running_loop().create_future()
        self._waiting.append((rows, future))
        self._waiting_rows += len(rows)
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        return await future

    def close(self) -> None:
        """After what runs, give the engine's memory back."""
        self._thread.submit(self._path.close)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        while self._waiting:
            batch = [self._take()]
            while self._waiting and len(batch) < engine_batch_rows:
                batch.append(self._take())
            await self._run_batch([entry for entry in batch if not entry[1].done()])
        self._runner = None

    def _take(self) -> tuple[list[Any], asyncio.Future[list[tuple[Any, ...]]]]:
        entry = self._waiting.popleft()
        self._waiting_rows -= len(entry[0])
        return entry

    async def _run_batch(
        self, batch: list[tuple[list[Any], asyncio.Future[list[tuple[Any, ...]]]]]
    ) -> None:
        loop = asyncio.get_running_loop()
        rows = [row for own, _ in batch for row in own]
        try:
            found = await loop.run_in_executor(self._thread, self._path.compute, rows)
        except EngineFailed as error:
            if len(batch) > 1:
                # Requests do not share fate: each alone, so that only the culprit fails.
                for entry in batch:
                    await self._run_batch([entry])
            elif batch and not batch[0][1].done():
                batch[0][1].set_exception(_mesh_error(error))
            return
        start = 0
        for own, future in batch:
            if not future.done():
                future.set_result(found[start : start + len(own)])
            start += len(own)


def _mesh_error(error: EngineFailed) -> MeshError:
    names = {"time": "DEADLINE_EXCEEDED", "memory": "MEMORY_EXHAUSTED"}
    return MeshError(names.get(error.kind, "FEATURE_INVALID"), f"the engine refused: {error}")
