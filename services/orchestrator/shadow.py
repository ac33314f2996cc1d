"""Copies of answered requests for a version under trial, whose answers nobody waits for.

A copy begins when the answer has been given, so that it can neither change nor delay it. It goes
only when nothing real waits and the replica has nothing to do; and on top of that shadows use at
most a small share of the replicas' time, because a batch in progress is not interrupted and a
request may come while one computes. What does not fit is dropped, the oldest first. No receipt is
written, nothing is retried, and no breaker hears of it.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from contracts.errors import MeshError
from contracts.execution import Executed
from contracts.types import Scalar
from services.orchestrator.comparison import outputs_difference
from services.orchestrator.config import (
    shadow_bytes_max,
    shadow_credit_s_max,
    shadow_rows_max,
    shadow_s_max,
    shadow_share_alone,
    shadow_share_beside,
    shadow_tick_s,
    shadow_values_max,
    shadow_waiting_max,
)
from services.orchestrator.dispatch import Dispatcher
from services.orchestrator.execution import Batch
from services.orchestrator.observe import Observed
from services.orchestrator.output_contract import check_outputs, check_predictions
from services.orchestrator.plan import ModelPlan
from services.orchestrator.replica import Replica
from services.orchestrator.request import Part, Work
from services.orchestrator.reserve import SHARED
from shared.clock import Clock
from shared.deadline import remaining_ms


class Share:
    """Seconds of compute that shadows may use: they come in at `rate` a second, up to
    `shadow_credit_s_max`, and what a batch took is paid afterwards. Pure."""

    def __init__(self, rate: float, now_s: float) -> None:
        self.rate = rate
        self.credit_s = 0.0
        self._at_s = now_s

    def has_some(self, now_s: float) -> bool:
        """Whether a batch may leave now."""
        self.credit_s = min(
            shadow_credit_s_max, self.credit_s + self.rate * max(0.0, now_s - self._at_s)
        )
        self._at_s = now_s
        return self.credit_s > 0.0

    def pay(self, took_s: float) -> None:
        """A batch took so long."""
        self.credit_s -= took_s


class Copy:
    """One request for the shadow, and what the real one was answered."""

    def __init__(self, work: Work, shadow: ModelPlan, part: Part, now_s: float) -> None:
        copied = Work(
            work.call, work.table, shadow, work.variant, work.request_id, (), work.rows, 0, 0
        )
        copied.deadline_s = now_s + shadow_s_max
        self.original = work.plan
        self.part = Part(copied, 0, part.rows, part.bytes, part.tensors)
        self.part.block = part.block
        self.part.good_rows = part.good_rows
        self.part.lengths, self.part.longest = part.lengths, part.longest
        self.part.tokens, self.part.charge = part.tokens, part.charge
        self.outputs = outputs_of(part.batch, part, work.plan)
        self.labels = [prediction.label for prediction in part.checked]


class ShadowBatch(Batch):
    """Copies that travel together; `timer` gives them up."""

    timer: asyncio.TimerHandle | None = None

    def __init__(
        self, shadows: "Shadows", replica: Replica, share: Share, copies: list[Copy], now_s: float
    ) -> None:
        plan = copies[0].part.work.plan
        super().__init__(plan, [copy.part for copy in copies], now_s)
        self.shadows = shadows
        self.replica = replica
        self.share = share
        self.copies = copies

    def answered(self, executed: Executed | None, error: MeshError | None) -> None:
        """The RPC client's callback."""
        self.shadows.answered(self, executed, error)

    def expire(self) -> None:
        """It took too long."""
        self.shadows.give_up(self)


class Shadows:
    """What waits and what is out; on the loop's thread only."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock, observed: Observed) -> None:
        now_s = clock.monotonic()
        self.sent = 0
        self.failed = 0
        self.dropped = 0
        self.out = 0
        self._dispatcher = dispatcher
        self._clock = clock
        self._observed = observed
        self._alone = Share(shadow_share_alone, now_s)
        self._beside = Share(shadow_share_beside, now_s)
        self._answered: list[tuple[Work, Part]] = []
        self._waiting: deque[Copy] = deque()
        self._is_tick_due = False

    def offer(self, work: Work) -> None:
        """The request is about to be answered; what is needed of it is taken in a later turn."""
        shadow = work.shadow
        assert shadow is not None, "it is to be copied"
        part = work.parts[0]
        if len(work.parts) > 1 or part.errors or part.bytes > shadow_bytes_max:
            self._drop(shadow)
            return
        if len(self._answered) >= shadow_waiting_max:
            self._drop(shadow)
            return
        self._answered.append((work, part))
        if not self._is_tick_due:
            self._is_tick_due = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _drop(self, shadow: ModelPlan) -> None:
        self.dropped += 1
        self._observed.shadow(shadow, "dropped", 1)

    def _tick(self) -> None:
        """Take what was answered, send what may go, look again while something waits."""
        self._is_tick_due = False
        now_s = self._clock.monotonic()
        answered, self._answered = self._answered, []
        for work, part in answered:
            assert work.shadow is not None, "it is to be copied"
            self._waiting.append(Copy(work, work.shadow, part, now_s))
        while self._waiting and (
            len(self._waiting) > shadow_waiting_max
            or self._waiting[0].part.work.deadline_s <= now_s
        ):
            self._drop(self._waiting.popleft().part.work.plan)
        if self._waiting:
            self._send(now_s)
        if self._waiting and not self._is_tick_due:
            self._is_tick_due = True
            asyncio.get_running_loop().call_later(shadow_tick_s, self._tick)

    def _send(self, now_s: float) -> None:
        """Send the first copies that belong together, if a replica is idle and the share allows."""
        if self._dispatcher.queue.parts or self.out:
            return
        first = self._waiting[0]
        plan = first.part.work.plan
        idle = self._idle(plan, now_s)
        if not idle:
            return
        others = [one for one in self._idle(first.original, now_s) if one is not idle[-1]]
        share = self._beside if others else self._alone
        if not share.has_some(now_s):
            return
        copies, rows = [self._waiting.popleft()], first.part.good_rows
        while self._waiting and self._waiting[0].part.work.plan is plan:
            rows += self._waiting[0].part.good_rows
            if rows > shadow_rows_max:
                break
            copies.append(self._waiting.popleft())
        self._execute(ShadowBatch(self, idle[-1], share, copies, now_s), idle[-1], now_s)

    def _idle(self, plan: ModelPlan, now_s: float) -> list[Replica]:
        given = self._dispatcher.replicas.given(plan).get(SHARED, ())
        return [
            replica
            for replica in given
            if not replica.batches and not replica.shadows and replica.has_credit(now_s)
        ]

    def _execute(self, batch: ShadowBatch, replica: Replica, now_s: float) -> None:
        batch.is_out = True
        self.out += 1
        replica.shadows += 1
        batch.timer = asyncio.get_running_loop().call_later(shadow_s_max, batch.expire)
        batch.msgid = replica.client.call_nowait(
            "execute",
            batch.encode(now_s),
            batch.answered,
            trace_id=batch.parts[0].work.call.trace_id,
            deadline_ms=remaining_ms(now_s + shadow_s_max, now_s),
        )
        replica.client.flush()
        batch.sent_s = now_s

    def give_up(self, batch: ShadowBatch) -> None:
        """The runtime took longer than a shadow may."""
        if batch.is_out:
            assert batch.replica is not None, "it was sent"
            batch.replica.client.cancel(batch.msgid)
            text = f"a shadow took longer than {shadow_s_max} s"
            self.answered(batch, None, MeshError("DEADLINE_EXCEEDED", text))

    def answered(
        self, batch: ShadowBatch, executed: Executed | None, error: MeshError | None
    ) -> None:
        """The runtime's answer, or its loss; real traffic goes first."""
        if not batch.is_out:
            return
        assert batch.replica is not None, "it was sent"
        assert batch.timer is not None, "with its timer"
        batch.timer.cancel()
        batch.timer = None
        batch.is_out = False
        self.out -= 1
        batch.replica.shadows -= 1
        batch.share.pay(self._clock.monotonic() - batch.sent_s)
        self._dispatcher.pump()
        self._judge(batch, executed)
        batch.parts, batch.copies = [], []  # breaks the cycle of batch and parts
        if self._waiting and not self._is_tick_due:
            self._is_tick_due = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _judge(self, batch: ShadowBatch, executed: Executed | None) -> None:
        """Count the batch and compare what it says."""
        count = len(batch.copies)
        is_good = executed is not None and not executed.errors
        if is_good and executed is not None:
            try:
                check_outputs(executed, batch.plan, count, batch.rows)
                batch.executed = executed
                for index, copy in enumerate(batch.copies):
                    self._compare(batch, copy, index)
            except MeshError:
                is_good = False
        if is_good:
            self.sent += count
        else:
            self.failed += count
        self._observed.shadow(batch.plan, "ok" if is_good else "failed", count)

    def _compare(self, batch: ShadowBatch, copy: Copy, index: int) -> None:
        plan, part = batch.plan, copy.part
        found = outputs_of(batch, part, plan)
        count_max = max(1, shadow_values_max // len(batch.copies))
        apart = outputs_difference(plan.outputs, copy.outputs, found, count_max)
        agreeing = 0
        if copy.labels and plan.labels:
            assert batch.executed is not None, "it was answered"
            raw, risk_level = batch.executed.predictions[index], part.work.body.risk_level
            predictions = check_predictions(raw, part.good_rows, plan, risk_level)
            agreeing = sum(
                [one.label == label for one, label in zip(predictions, copy.labels, strict=True)]
            )
        self._observed.compared(plan, apart, len(copy.labels), agreeing)

    def statistics(self) -> dict[str, Scalar]:
        """Copies, apart from the requests."""
        return {
            "shadows_answered": self.sent,
            "shadows_failed": self.failed,
            "shadows_dropped": self.dropped,
            "shadows_waiting": len(self._waiting),
            "shadows_out": self.out,
        }


def outputs_of(batch: Batch | None, part: Part, plan: ModelPlan) -> Sequence[bytes]:
    """The rows of a part in each output, copied, so that the rest of its batch can go."""
    assert batch is not None, "it was in a batch"
    assert batch.executed is not None, "which was answered"
    start, end = part.batch_row, part.batch_row + part.good_rows
    return [
        bytes(memoryview(output.data)[start * tensor.row_bytes : end * tensor.row_bytes])  # type: ignore[arg-type]
        for output, tensor in zip(batch.executed.outputs, plan.outputs, strict=True)
    ]
