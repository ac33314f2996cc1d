"""The waiting parts and the runtimes: who leaves when, and what comes back.

Thin: `queue` has the order, `batching` decides when a batch leaves, `replicas` sends it.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from contracts.errors import MeshError
from contracts.execution import Executed
from services.orchestrator.batching import IDLE, leaves_at
from services.orchestrator.config import retries_max
from services.orchestrator.deadlines import Awaited, Wheel
from services.orchestrator.execution import Batch
from services.orchestrator.fairness import RiskClass
from services.orchestrator.forecast import Forecast
from services.orchestrator.observe import Observed
from services.orchestrator.queue import Lane, Queue
from services.orchestrator.replica import Replica
from services.orchestrator.replicas import Replicas
from services.orchestrator.request import Part
from services.orchestrator.reserve import SHARED, sharing
from services.orchestrator.retrying import RetryBudget
from shared.clock import Clock

_NEVER_S = float("inf")
_AGAIN = {
    "UNAVAILABLE": "UNAVAILABLE",
    "CANCELLED": "UNAVAILABLE",
    "MODEL_NOT_READY": "MODEL_NOT_READY",
    "MODEL_UNKNOWN": "MODEL_NOT_READY",
}
"""Errors of a batch whose runtime went away, drains, or let the version go: another one may take
it, and if that fails too, what the caller is told."""


class Dispatcher:
    """Batches what is in `queue` and hands it to replicas; on the loop's thread only.

    Each part whose request has not ended before is once in a call of `on_done`, or given to
    `on_failed`.
    """

    def __init__(
        self,
        queue: Queue,
        sockets: Sequence[Path],
        clock: Clock,
        wheel: Wheel[Awaited],
        observed: Observed,
        on_done: Callable[[Sequence[Part]], None],
        on_failed: Callable[[Part, MeshError], None],
    ) -> None:
        self.queue = queue
        self.replicas = Replicas(sockets, clock, wheel, self._answered, self.wake)
        self.forecast = Forecast(queue, self.replicas.given)
        self.retries = RetryBudget()
        self.batches = 0
        self.retried = 0
        self._clock = clock
        self._observed = observed
        self._on_done = on_done
        self._on_failed = on_failed
        self._kept_back: list[tuple[Replica, Lane, int, Sequence[RiskClass]]] = []
        """Whose turn came, and only its lead has not, by the replica that they would go to. Leads
        differ, and without this whoever has a longer one would take each place before them."""
        self._is_pump_due = False
        self._window_ends_s = _NEVER_S
        self._window: asyncio.TimerHandle | None = None

    def forget(self, part: Part) -> None:
        """The request of a waiting or travelling part ended; a batch that nobody waits for any
        more is abandoned."""
        batch = part.batch
        if part.flow is not None:
            self.queue.forget(part)
        elif batch is not None:
            batch.open -= 1
            if batch.open == 0 and batch.is_out:
                self.replicas.abandon(batch)

    def wake(self) -> None:
        """Send at the end of the turn, so that requests that arrived together go together."""
        if not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._pump_once)

    def _pump_once(self) -> None:
        self._is_pump_due = False
        self.pump()

    def pump(self) -> bool:
        """Send what may leave now; whether anything did."""
        if not self.queue.parts:
            return False
        now_s = self._clock.monotonic()
        has_sent = False
        while self.queue.parts and self._send_next(now_s):
            has_sent = True
        return has_sent

    def _send_next(self, now_s: float) -> bool:
        """Send one batch of the first lane, in order of their turns, that may leave."""
        if self._kept_back:
            self._kept_back = []
        for lane in self.queue.waiting():
            if self.replicas.reservations:
                if self._send_reserved(lane, now_s):
                    return True
            elif self._send_from(lane, now_s, SHARED, lane.rows, ()):
                return True
        return False

    def _send_reserved(self, lane: Lane, now_s: float) -> bool:
        """Send a batch of one class to a replica of its own, or of the others to a shared one."""
        given = self.replicas.given(lane.plan)
        for each in lane.classes:
            risk = each.risk_level
            if (
                each.rows
                and risk in given
                and self._send_from(lane, now_s, risk, each.rows, [each])
            ):
                return True
        some = sharing(lane.classes, given, lane.window.rows_max)
        rows = sum([each.rows for each in some])
        return rows > 0 and self._send_from(lane, now_s, SHARED, rows, some)

    def _send_from(
        self, lane: Lane, now_s: float, for_whom: int, rows: int, only: Sequence[RiskClass]
    ) -> bool:
        """Send a batch of the lane's classes in `only` (or all), which have so many rows waiting,
        if it may leave now."""
        replica = self.replicas.choose(lane.plan, now_s, for_whom)
        if replica is None:
            return False
        wanted_s = self.forecast.wanted_s(lane.plan, replica) if replica.batches else IDLE
        leaves_s = leaves_at(rows, lane.oldest_s(), lane.window, wanted_s)
        if leaves_s > now_s:
            lane.is_kept_back = leaves_s == wanted_s
            if lane.is_kept_back:
                self._kept_back.append((replica, lane, for_whom, only))
            self._wake_at(leaves_s, now_s)
            return False
        for kept_for, earlier, whom, classes in self._kept_back:
            if kept_for is replica:  # the one place is taken now: by whose turn it is
                lane, for_whom, only = earlier, whom, classes
                break
        self._send_to(replica, lane, for_whom, only, now_s)
        return True

    def _send_to(
        self,
        replica: Replica,
        lane: Lane,
        for_whom: int,
        only: Sequence[RiskClass],
        now_s: float,
    ) -> None:
        parts = self.queue.take(lane, now_s, only, is_apart=for_whom != SHARED)
        batch = Batch(lane.plan, parts, now_s)
        batch.was_kept_back, lane.is_kept_back = lane.is_kept_back, False
        batch.expected_s = self.forecast.expected_s(batch)
        self.batches += 1
        self.retries.sent(len(parts), now_s)
        self.replicas.send(replica, batch, now_s)

    def _wake_at(self, window_ends_s: float, now_s: float) -> None:
        """Look again when this window ends, unless an earlier one is waited for."""
        if self._window_ends_s <= window_ends_s:
            return
        if self._window is not None:
            self._window.cancel()
        self._window_ends_s = window_ends_s
        self._window = asyncio.get_running_loop().call_later(
            window_ends_s - now_s, self._window_ended
        )

    def _window_ended(self) -> None:
        self._window_ends_s, self._window = _NEVER_S, None
        self.pump()

    def _answered(self, batch: Batch, executed: Executed | None, error: MeshError | None) -> None:
        if executed is not None:
            try:
                batch.deliver(executed)
                self._observed.computed(batch.plan, batch.rows, len(batch.parts), batch.stages_us)
                if batch.tokens:
                    self._observed.padded(batch.plan, batch.tokens_real, batch.tokens)
                self.forecast.learn(batch, executed)
            except MeshError as broken:
                error = broken
        # The runtime gets its next batch before the answers of this one are written.
        if self.pump():
            asyncio.get_running_loop().call_soon(self._report, batch, error)
        else:
            self._report(batch, error)

    def _report(self, batch: Batch, error: MeshError | None) -> None:
        """Hand back the parts whose requests have not ended meanwhile."""
        parts = [part for part in batch.parts if part.work.outcome is None]
        batch.parts = []  # breaks the cycle of batch and parts
        if error is None:
            self._on_done(parts)
            return
        now_s = self._clock.monotonic()
        for part in parts:
            if part.work.outcome is not None:
                continue  # it ended with another part of its request, just now
            if self._try_again(part, error, now_s):
                part.batch = None
                self.queue.push(part, now_s)
            else:
                name = _AGAIN.get(error.name, error.name)
                self._on_failed(part, MeshError(name, error.message, details=error.details))
        self.wake()

    def _try_again(self, part: Part, error: MeshError, now_s: float) -> bool:
        """Whether the part waits once more: within the retry budget. A full runtime did not begin
        with it, so that it may go again anyway."""
        if error.name == "OVERLOADED":
            return True
        if error.name not in _AGAIN or part.retries >= retries_max:
            return False
        if not self.retries.take(now_s):
            return False
        part.retries += 1
        self.retried += 1
        return True
