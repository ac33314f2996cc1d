"""Requests for one view on the engine, taken together while they wait: a run of 32 rows costs what
a run of one row costs.
"""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from contracts.errors import MeshError
from services.data_fabric.config import engine_batch_requests, engine_waiting_rows_max
from services.data_fabric.engine import EngineFailed
from services.data_fabric.engine_path import EnginePath
from shared.deadline import exceeded

Computed = list[tuple[Any, ...]]


@dataclass(slots=True, eq=False)
class _Request:
    """One request's rows, and where its features go."""

    rows: list[Any]
    future: asyncio.Future[Computed] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class EngineQueue:
    """Belongs to the loop's thread; the engine runs on a thread of its own."""

    def __init__(self, path: EnginePath) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._waiting: deque[_Request] = deque()
        self._waiting_rows = 0
        self._runner: asyncio.Task[None] | None = None
        self._is_closing = False

    async def compute(self, rows: list[Any]) -> Computed:
        """The features of one request's rows. Raises MeshError."""
        if self._waiting_rows + len(rows) > engine_waiting_rows_max:
            raise MeshError(
                "OVERLOADED",
                f"{self._waiting_rows} rows wait for the engine, "
                f"engine_waiting_rows_max is {engine_waiting_rows_max}",
                retry_after_ms=50,
                details={"reason": "waiting"},
            )
        request = _Request(rows)
        self._waiting.append(request)
        self._waiting_rows += len(rows)
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        return await request.future

    def close(self) -> None:
        """After what waits, give the engine's memory back."""
        self._is_closing = True
        if self._runner is None:
            self._end()

    def _end(self) -> None:
        self._thread.submit(self._path.close)
        self._thread.shutdown(wait=False)

    async def _run(self) -> None:
        try:
            while self._waiting:
                count = min(len(self._waiting), engine_batch_requests)
                batch = [self._waiting.popleft() for _ in range(count)]
                self._waiting_rows -= sum(len(request.rows) for request in batch)
                await self._compute(batch)
        finally:
            self._runner = None
            if self._is_closing:
                self._end()

    async def _compute(self, batch: list[_Request]) -> None:
        batch = [request for request in batch if not request.future.done()]
        rows = [row for request in batch for row in request.rows]
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._thread, self._path.compute, rows)
        except EngineFailed as error:
            if len(batch) > 1:
                # Requests do not share fate: each alone, so that only the culprit fails.
                for request in batch:
                    await self._compute([request])
            elif batch and not batch[0].future.done():
                batch[0].future.set_exception(_mesh_error(error))
            return
        start = 0
        for request in batch:
            if not request.future.done():
                request.future.set_result(found[start : start + len(request.rows)])
            start += len(request.rows)


def _mesh_error(error: EngineFailed) -> MeshError:
    text = f"the engine refused: {error}"
    if error.kind == "time":
        return exceeded(text, "features", "data_fabric")
    return MeshError("MEMORY_EXHAUSTED" if error.kind == "memory" else "FEATURE_INVALID", text)
