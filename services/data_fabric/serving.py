"""One loaded view as it answers requests: short ones at once, long ones in slices that let the
loop turn, and on the engine in micro-batches.
"""

import asyncio

import msgspec

from contracts.errors import MeshError
from contracts.features import FeatureLineage, ViewHeader
from services.data_fabric.block import BlockEncoder
from services.data_fabric.config import inline_rows_max
from services.data_fabric.engine_queue import EngineQueue
from services.data_fabric.loading import LoadedView
from services.data_fabric.outcome import Evaluator, Outcome
from services.data_fabric.row_lists import slices
from services.data_fabric.validation import RowDecoder


class ServedView:
    """Belongs to the loop's thread."""

    def __init__(self, loaded: LoadedView) -> None:
        self.loaded = loaded
        self._evaluator = Evaluator(loaded.header, RowDecoder(loaded.header))
        self._blocks = BlockEncoder(loaded.digest, loaded.header)
        self._queue = None if loaded.engine is None else EngineQueue(loaded.engine)

    @property
    def header(self) -> ViewHeader:
        """The view's contract."""
        return self.loaded.header

    @property
    def lineage(self) -> FeatureLineage:
        """The digests of the view and its sources."""
        return self.loaded.lineage

    def is_short(self, rows: int) -> bool:
        """Whether a call of so many rows is computed at once, in a few milliseconds."""
        return self.loaded.closure is not None and rows <= inline_rows_max

    def evaluate(self, raw: msgspec.Raw | bytes) -> Outcome:
        """The outcome of a short request. Raises MeshError INVALID_REQUEST."""
        assert self.loaded.closure is not None, "a view on the engine is never short"
        return self._evaluator.evaluate(raw, self.loaded.closure)

    async def evaluate_each(self, raws: list[msgspec.Raw]) -> list[Outcome | MeshError]:
        """The outcome, or the error, of each of several requests."""
        if self._queue is not None:
            # Together, so that they share a run of the engine.
            return await asyncio.gather(*map(self._attempt, raws))
        return [await self._attempt(raw) for raw in raws]

    async def _attempt(self, raw: msgspec.Raw) -> Outcome | MeshError:
        try:
            return await self.evaluate_slowly(raw)
        except MeshError as error:
            return error

    async def evaluate_slowly(self, raw: msgspec.Raw | bytes) -> Outcome:
        """The outcome of any request. Raises MeshError."""
        if self._queue is not None:
            decoded = self._evaluator.decode(raw)
            computed = await self._queue.compute(decoded.rows) if decoded.rows else []
            return self._evaluator.judge(decoded, computed)
        assert self.loaded.closure is not None, "a view has a closure or an engine"
        whole = Outcome([], [], None)
        for at, part in enumerate(slices(raw, inline_rows_max)):
            whole.extend(self._evaluator.evaluate(part, self.loaded.closure, at * inline_rows_max))
            await asyncio.sleep(0)
        return whole

    def block(self, outcome: Outcome) -> bytes:
        """The encoded FeatureBlock of the good rows."""
        return self._blocks.encode(outcome.rows)

    def close(self) -> None:
        """Nobody asks this view any more."""
        if self._queue is not None:
            self._queue.close()
