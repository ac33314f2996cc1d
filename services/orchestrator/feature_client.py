"""Features from the fabric in micro-batches: while one call of a view version is in flight, the
next one gathers.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from contracts.errors import MeshError
from contracts.features import (
    FeatureBatch,
    FeatureBatchResponse,
    FeatureItem,
)
from contracts.methods import METHODS
from contracts.pack import ViewReference
from contracts.service import Health
from contracts.types import UNSET, Empty
from services.orchestrator.config import (
    feature_retry_s,
    ready_grace_s,
    retries_max,
)
from services.orchestrator.deadlines import Awaited, Wheel
from services.orchestrator.micro_batch import FeatureAnswer, FeatureCall, ViewLane, take_item
from services.orchestrator.request import Part, Where
from services.orchestrator.stamps import silent
from shared.clock import Clock
from shared.deadline import remaining_ms, remaining_us, share_deadline
from shared.rpc.client import RpcClient

_timeout_s = METHODS["data_fabric"]["features_batch"].budget.timeout_ms / 1_000
_AWAY = ("UNAVAILABLE", "CANCELLED")
"""The fabric is gone, or drains."""
OnDone = Callable[[Part, MeshError | None], None]
"""A part has its features, or failed."""


class FeatureClient:
    """Gets features for parts; on the loop's thread only. `is_there`: the fabric answered on this
    connection, and `instance` is its id.

    `wheel` ends calls that take too long; `on_done` is called once for each submitted part whose
    request has not ended before.
    """

    def __init__(self, path: Path, clock: Clock, wheel: Wheel[Awaited], on_done: OnDone) -> None:
        self.instance = "data_fabric"
        self.is_there = False
        self.calls = 0
        self.rows = 0
        self._client = RpcClient(
            str(path),
            "data_fabric",
            clock=clock,
            on_connected=self._connected,
            on_lost=self._lost,
        )
        self._clock = clock
        self._wheel = wheel
        self._on_done = on_done
        self._lanes: dict[tuple[str, str], ViewLane] = {}
        self._changed_s = clock.monotonic()
        self._is_pump_due = False

    async def start(self) -> None:
        """Begin to dial."""
        with contextlib.suppress(MeshError):
            await self._client.connect(0.0)

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()

    def _connected(self) -> None:
        """The supervisor holds the socket, so a connection does not mean that a fabric is there."""
        self._client.call_nowait("health", Empty(), self._introduced)

    def _introduced(self, health: Health | None, error: MeshError | None) -> None:
        if health is not None:
            self.instance = health.instance
            self._changed(is_there=True)

    def _lost(self) -> None:
        self._changed(is_there=False)

    def _changed(self, *, is_there: bool) -> None:
        self.is_there = is_there
        self._changed_s = self._clock.monotonic()
        self._wake()

    def submit(self, part: Part, now_s: float) -> None:
        """Ask for the features of a part's rows."""
        view = part.work.plan.view
        assert view is not None, "the model has a view"
        part.where = Where.FEATURES
        part.entered_s = now_s
        if not self.is_there and now_s - self._changed_s > ready_grace_s:
            self._on_done(part, MeshError("UNAVAILABLE", "the data fabric is away"))
            return
        self._lane(view).waiting[part] = None
        self._wake()

    def _lane(self, view: ViewReference) -> ViewLane:
        lane = self._lanes.get((view.name, view.version))
        if lane is None:
            lane = self._lanes[view.name, view.version] = ViewLane(self, view)
        return lane

    def forget(self, part: Part) -> None:
        """The part's request ended; a call that nobody waits for is cancelled."""
        call = part.asked
        if call is None:
            view = part.work.plan.view
            assert view is not None, "it was submitted"
            lane = self._lanes.get((view.name, view.version))
            if lane is not None:
                lane.waiting.pop(part, None)
            return
        part.asked = None
        call.open -= 1
        if call.open == 0:
            self._client.cancel(call.msgid)
            self._finish(call)

    def give_up(self, call: FeatureCall) -> None:
        """The call took longer than its share: its parts fail, naming the hop."""
        if call.lane.call is not call:
            return
        self._client.cancel(call.msgid)
        self._finish(call)
        error = silent(Where.FEATURES, self.instance, _timeout_s)
        for part in self._still_asked(call):
            if part.work.outcome is None:  # else it ended with another part of its request
                self._on_done(part, error)

    def answered(
        self, call: FeatureCall, result: FeatureBatchResponse | None, error: MeshError | None
    ) -> None:
        """The fabric's answer to a call, or its loss."""
        if call.lane.call is not call:
            return  # it was given up before it could be sent
        self._finish(call)
        if result is not None and len(result.items) == len(call.parts):
            self._deliver(call, result)
            return
        if error is None:
            text = f"{self.instance} answered for another number of requests than {len(call.parts)}"
            error = MeshError("INTERNAL", text)
        self._failed(call.lane.view, self._still_asked(call), error)

    def _deliver(self, call: FeatureCall, result: FeatureBatchResponse) -> None:
        now_s = self._clock.monotonic()
        shared = FeatureAnswer(
            self.instance, result.received_us, result.sent_us, result.lineage, result.frozen
        )
        for part, item in zip(call.parts, result.items, strict=True):
            if part.asked is not call:
                continue
            part.asked = None
            part.features_s += now_s - part.entered_s
            part.features = shared
            self._on_done(part, take_item(part, item))

    def _failed(self, view: ViewReference, parts: list[Part], error: MeshError) -> None:
        """Try again what may be well after a restart; fail the others."""
        lane = self._lane(view)
        now_s = self._clock.monotonic()
        is_restarting = now_s - self._changed_s < ready_grace_s
        for part in parts:
            if part.work.outcome is not None:
                continue  # it ended with another part of its request, just now
            if error.name in _AWAY and part.retries < retries_max:
                part.retries += 1
                lane.waiting[part] = None
            elif error.name == "VIEW_UNKNOWN" and is_restarting:
                lane.waiting[part] = None
                lane.paused_until_s = now_s + feature_retry_s
            else:
                name = "UNAVAILABLE" if error.name in _AWAY else error.name
                self._on_done(part, MeshError(name, error.message, details=error.details))
        self._wake()

    def _still_asked(self, call: FeatureCall) -> list[Part]:
        parts = [part for part in call.parts if part.asked is call]
        for part in parts:
            part.asked = None
        return parts

    def _finish(self, call: FeatureCall) -> None:
        self._wheel.discard(call)
        call.lane.call = None
        if call.lane.waiting:
            self._wake()
        else:
            self._lanes.pop((call.lane.view.name, call.lane.view.version), None)

    def _wake(self) -> None:
        """Send at the end of the turn, so that its requests go together."""
        if not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_due = False
        if not self.is_there:
            return
        now_s = self._clock.monotonic()
        for lane in self._lanes.values():
            if lane.call is not None or not lane.waiting:
                continue
            if lane.paused_until_s > now_s:
                asyncio.get_running_loop().call_later(lane.paused_until_s - now_s, self._wake)
            else:
                self._send(lane, now_s)

    def _send(self, lane: ViewLane, now_s: float) -> None:
        parts = lane.take()
        latest_s = max(part.work.deadline_s for part in parts)
        call = FeatureCall(lane, parts, share_deadline(latest_s, now_s, _timeout_s))
        items = []
        for part in parts:
            assert part.raw_rows is not UNSET, "a model with a view takes rows"
            part.asked = call
            left_us = remaining_us(part.work.deadline_s, now_s)
            items.append(FeatureItem(part.work.call.trace_id, part.raw_rows, left_us))
        self.calls += 1
        self.rows += sum(part.rows for part in parts)
        lane.call = call
        self._wheel.add(call)
        call.msgid = self._client.call_nowait(
            "features_batch",
            FeatureBatch(view=lane.view.name, view_version=lane.view.version, items=items),
            call.answered,
            trace_id=parts[0].work.call.trace_id,
            deadline_ms=remaining_ms(call.deadline_s, now_s),
        )
