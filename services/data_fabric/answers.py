"""What the fabric answers: features, the views it holds, their lineage.

`features_batch` of a compiled view is answered at once, without a task. Longer work runs in tasks,
of which there are at most `slow_calls_max`.
"""

import asyncio
from collections.abc import Coroutine, Mapping

import msgspec

from contracts.errors import MeshError
from contracts.features import (
    FeatureBatchItem,
    FeatureBatchResponse,
    FeatureItem,
    FeatureResponse,
    RefusedRow,
    ViewLineage,
    Views,
)
from contracts.types import UNSET
from services.data_fabric.config import slow_calls_max
from services.data_fabric.counters import Counters
from services.data_fabric.outcome import Outcome
from services.data_fabric.quarantine import Quarantine
from services.data_fabric.row_lists import row_count
from services.data_fabric.serving import ServedView
from services.data_fabric.tables import arrow_stream, row_maps
from services.data_fabric.views import Views as HeldViews
from shared import logs
from shared.clock import Clock
from shared.deadline import exceeded
from shared.rpc.call import Deferred
from shared.rpc.server import DEFERRED, Call, Handler

log = logs.get("services.data_fabric")


class Answers:
    """The handlers. Belongs to the loop's thread."""

    def __init__(
        self, views: HeldViews, counters: Counters, quarantine: Quarantine, clock: Clock
    ) -> None:
        self._views = views
        self._counters = counters
        self._quarantine = quarantine
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    def handlers(self) -> Mapping[str, Handler]:
        """The service's own methods."""
        return {
            "features": self._features,
            "features_batch": self._features_batch,
            "views": lambda call: Views(views=self._views.rows()),
            "lineage": self._lineage,
        }

    @property
    def slow_calls(self) -> int:
        """Calls that are answered by a task."""
        return len(self._tasks)

    def close(self) -> None:
        """Nobody waits for an answer any more."""
        for task in self._tasks:
            task.cancel()

    def _features(self, call: Call) -> FeatureResponse | Deferred:
        body = call.body
        view = self._views.find(body.view, body.view_version)
        if view.is_short(row_count(body.rows)):
            return self._response(call, view, view.evaluate(body.rows))

        async def answer() -> None:
            call.reply(self._response(call, view, await view.evaluate_slowly(body.rows)))

        return self._later(call, answer())

    def _response(self, call: Call, view: ServedView, outcome: Outcome) -> FeatureResponse:
        self._note(view, outcome, call.trace_id)
        form, header = call.body.format, view.header
        block = msgspec.Raw(view.block(outcome)) if form == "block" else UNSET
        return FeatureResponse(
            rows=row_maps(header, outcome.rows) if form == "rows" else UNSET,
            arrow=arrow_stream(header, outcome.rows) if form == "arrow" else UNSET,
            block=block,  # type: ignore[arg-type]  # encoded already
            lineage=view.lineage,
            freshness_s=_or_unset(outcome.freshness_s),
            frozen=[],
            refused=_refused_rows(outcome, call.trace_id),
        )

    def _features_batch(self, call: Call) -> FeatureBatchResponse | Deferred:
        """Hot path: no task where the view is compiled and the rows are few."""
        body = call.body
        view = self._views.find(body.view, body.view_version)
        if view.is_short(sum([row_count(item.rows) for item in body.items])):
            items = [self._item(view, item, _attempt(view, item)) for item in body.items]
            return self._batch(call, view, items)

        async def answer() -> None:
            outcomes = await view.evaluate_each([item.rows for item in body.items])
            pairs = zip(body.items, outcomes, strict=True)
            items = [self._item(view, item, outcome) for item, outcome in pairs]
            call.reply(self._batch(call, view, items))

        return self._later(call, answer())

    def _item(
        self, view: ServedView, item: FeatureItem, outcome: Outcome | MeshError
    ) -> FeatureBatchItem:
        """One request's part of the answer; its faults are its own."""
        if isinstance(outcome, MeshError):
            return FeatureBatchItem(error=outcome.body(item.trace_id), refused=[])
        self._note(view, outcome, item.trace_id)
        refused = _refused_rows(outcome, item.trace_id) if outcome.refused else []
        if refused and not outcome.rows:
            return FeatureBatchItem(error=refused[0].error, refused=refused)
        return FeatureBatchItem(
            block=msgspec.Raw(view.block(outcome)),
            refused=refused,
            freshness_s=_or_unset(outcome.freshness_s),
        )

    def _batch(
        self, call: Call, view: ServedView, items: list[FeatureBatchItem]
    ) -> FeatureBatchResponse:
        return FeatureBatchResponse(
            items=items,
            lineage=view.lineage,
            frozen=[],
            received_us=int(call.received_s * 1e6),
            sent_us=self._clock.monotonic_us(),
        )

    def _later(self, call: Call, work: Coroutine[None, None, None]) -> Deferred:
        """Answer in a task, which ends with the call."""
        if len(self._tasks) >= slow_calls_max:
            work.close()
            raise MeshError(
                "OVERLOADED",
                f"{len(self._tasks)} long calls are under way, slow_calls_max is {slow_calls_max}",
                retry_after_ms=50,
                details={"reason": "waiting"},
            )
        task = asyncio.create_task(self._answer(call, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        call.on_cancel = lambda: _cancel(task)
        return DEFERRED

    async def _answer(self, call: Call, work: Coroutine[None, None, None]) -> None:
        left_s = call.deadline_s - self._clock.monotonic()
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                await work
        except TimeoutError:
            call.fail(exceeded("data fabric: the deadline passed", "features", "data_fabric"))
        except MeshError as error:
            call.fail(error)
        except Exception:
            log.exception("answer_failed", trace_id=call.trace_id)
            call.fail(MeshError("INTERNAL", "a defect of ours; the log has it under the trace id"))

    def _lineage(self, call: Call) -> ViewLineage:
        body = call.body
        view = self._views.find(body.view, body.view_version)
        loaded = view.loaded
        return ViewLineage(
            view=loaded.header.name,
            view_version=loaded.header.version,
            lineage=loaded.lineage,
            sources=loaded.sources,
            columns=loaded.columns,
        )

    def _note(self, view: ServedView, outcome: Outcome, trace_id: str) -> None:
        """Count a request's rows and keep the refused ones aside."""
        header = view.header
        self._counters.count(
            header.name,
            header.version,
            len(outcome.rows),
            len(outcome.refused),
            outcome.freshness_s,
        )
        for refused in outcome.refused:
            self._quarantine.put(trace_id, header.name, header.version, refused)


def _attempt(view: ServedView, item: FeatureItem) -> Outcome | MeshError:
    try:
        return view.evaluate(item.rows)
    except MeshError as error:
        return error


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _refused_rows(outcome: Outcome, trace_id: str) -> list[RefusedRow]:
    return [RefusedRow(row=one.row, error=one.error.body(trace_id)) for one in outcome.refused]


def _or_unset(value: float | None) -> float:
    return UNSET if value is None else value  # type: ignore[return-value]
