"""A request's way through the stages: admitted, features, batch, answered. The thin shell that
holds the state; what to do is decided in the modules that it calls.

No task per request: everything here is a callback on the loop's thread. A request ends in `_end`
and nowhere else.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from msgspec.structs import replace

from contracts.errors import MeshError
from contracts.policies import VERSION_0, PolicySet
from contracts.types import UNSET, Scalar
from services.orchestrator.access_log import AccessLog
from services.orchestrator.admission import (
    check_identity,
    check_input,
    divide,
    wanted_outputs,
)
from services.orchestrator.alarm import Alarm
from services.orchestrator.allowances import Allowances
from services.orchestrator.batching import windows_of
from services.orchestrator.bounds import Bounds
from services.orchestrator.breakers import Breakers
from services.orchestrator.combinations import Combinations
from services.orchestrator.config import deadline_grain_s
from services.orchestrator.deadlines import Awaited, Wheel
from services.orchestrator.dispatch import Dispatcher
from services.orchestrator.feature_client import FeatureClient
from services.orchestrator.memory_gate import MemoryGate
from services.orchestrator.observe import Observed
from services.orchestrator.queue import Queue, priority_of, weights_of
from services.orchestrator.replies import Replies
from services.orchestrator.request import Outcome, Part, Tally, Where, Work, outcome_of
from services.orchestrator.reserve import reservations_of
from services.orchestrator.routing import PlanOf, RouteTable
from services.orchestrator.shadow import Shadows
from services.orchestrator.spool import Spool
from services.orchestrator.stamps import late
from services.orchestrator.tokens import divide_tokens, token_parts
from shared.access import EVERY_TENANT
from shared.clock import Clock
from shared.polling import Poller
from shared.rpc.call import DEFERRED, Call, Deferred

_UNSET: Final = UNSET
_EVERY_TENANT: Final = EVERY_TENANT
_partial: Final = partial


class Pipeline:
    """Every request of this process, from `infer` to its end."""

    def __init__(
        self,
        *,
        instance: str,
        infra: str,
        clock: Clock,
        plan_of: PlanOf,
        spool: Spool,
        fabric: Path,
        runtimes: Sequence[Path],
        poll_s: float = 0.0,
    ) -> None:
        self.tally = Tally()
        self._poller = Poller(clock, poll_s)
        self._arrived: list[Call] = []
        self._alarm = Alarm(clock, self._ring)
        self.works: Wheel[Work] = Wheel(deadline_grain_s, self._alarm.by)
        self.observed = Observed()
        self.breakers = Breakers(clock, self.observed, Random())
        self.table = RouteTable(VERSION_0, plan_of)
        self._awaited: Wheel[Awaited] = Wheel(deadline_grain_s, self._alarm.by)
        self._clock = clock
        self._plan_of = plan_of
        self._spool = spool
        self._bounds = Bounds()
        self.allowances = Allowances()
        self.memory_gate = MemoryGate()
        self._access = AccessLog()
        self._replies = Replies(
            instance, Combinations(infra), spool, clock, self.observed, self._access
        )
        self.features = FeatureClient(fabric, clock, self._awaited, self._featured)
        queue = Queue(windows_of(VERSION_0), weights_of(VERSION_0))
        self.dispatcher = Dispatcher(
            queue,
            runtimes,
            clock,
            self._awaited,
            self.observed,
            on_done=self._parts_done,
            on_failed=self._part_failed,
        )
        self.shadows = Shadows(self.dispatcher, clock, self.observed)

    def activate(self, policies: PolicySet) -> None:
        """New policies for requests that come from now on; those in flight keep theirs."""
        table = self.table = RouteTable(policies, self._plan_of)
        self._bounds.apply(policies.policies)
        self.allowances.apply(policies.policies)
        priority = priority_of(policies)
        self.dispatcher.queue.rearrange(
            windows_of(policies), weights_of(policies), priority.aging_s
        )
        self.dispatcher.replicas.reserve(reservations_of(priority))
        deployed = {plan for plans in table.plans.values() for plan in plans.values()}
        self.dispatcher.replicas.want(deployed)
        self.dispatcher.forecast.apply(policies, deployed)
        self.breakers.apply(policies.policies, deployed)
        self.observed.forget(keep=deployed)
        self.dispatcher.wake()

    # The stages.

    def infer(self, call: Call) -> Deferred:
        """The handler of `infer`."""
        self.tally.received += 1
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._admit_arrived)
        self._arrived.append(call)
        return DEFERRED

    def _admit_arrived(self) -> None:
        """Admit what arrived in this turn together: one after the other would cost more, because
        reading a socket in between evicts this code from the processor's caches."""
        arrived, self._arrived = self._arrived, []
        queue = self.dispatcher.queue
        for call in arrived:
            if call.abandoned:
                self.tally.count(Outcome.CANCELLED)
                continue
            try:
                work = self._admit(call)
            except MeshError as error:
                self._refuse(call, error)
                continue
            push = queue.push if work.plan.view is None else self.features.submit
            for part in work.parts:
                push(part, work.received_s)
        self.dispatcher.pump()
        self._poller.touched(self.works.count <= 1)

    def _admit(self, call: Call) -> Work:
        """The request with its parts, everything that it needs counted. Raises MeshError before
        anything is."""
        body, peer, table = call.body, call.peer, self.table
        if peer.risk_level_min > 1 or _EVERY_TENANT not in peer.tenants:
            check_identity(body, peer)
        plan, variant, risk_level, shadow = table.choose(
            body, call.trace_id, self.dispatcher.replicas, self.breakers
        )
        if risk_level:
            call.body = body = replace(body, risk_level=risk_level)
        if self.memory_gate.is_shut:
            self.memory_gate.check(body.risk_level, call.received_s)
        rows, size, tensors = check_input(body, plan)
        charge, given = rows, None
        if plan.tokens is not None:
            window = self.dispatcher.queue.window_of(plan.name)
            given = divide_tokens(body, plan, window)
            given = self.dispatcher.forecast.charged(plan, given, window.rows_max)
            charge = given.charge
            # They were packed: as numbers they would take ten times the bytes that are counted.
            call.body = body = replace(body, input_ids=UNSET, attention_mask=UNSET)
        outputs = plan.every_output if body.outputs is _UNSET else wanted_outputs(body, plan)
        tenant_id = body.tenant_id
        request_id = call.trace_id if body.id is _UNSET else body.id
        now_s, reserved = call.received_s, 0
        self.dispatcher.forecast.admit(plan, body, charge, call.deadline_s, now_s)
        self._bounds.take(plan.name, tenant_id, rows, size)
        try:
            entity = "" if body.entity is _UNSET else body.entity
            reserved = self._spool.reserve(tenant_id, request_id, entity)
            if self.allowances.is_needed:
                units = rows if given is None else given.tokens
                self.allowances.take(plan.name, tenant_id, units, now_s, self._clock.wall())
        except MeshError:
            self._spool.release(reserved)
            self._bounds.release(plan.name, tenant_id, rows, size)
            raise
        work = Work(call, table, plan, variant, request_id, outputs, rows, size, reserved)
        if given is None:
            work.parts = divide(work, tensors, self.dispatcher.queue.window_of)
        else:
            work.tokens = given.tokens
            work.parts = token_parts(work, tensors, given)
        work.parts_left = len(work.parts)
        self.works.add(work)
        if self.breakers.shut:
            self.breakers.admitted(work)
        if shadow is not None:
            work.shadow = shadow
        call.on_cancel = _partial(self._cancelled, work)
        return work

    def _featured(self, part: Part, error: MeshError | None) -> None:
        """The fabric is done with a part."""
        if error is not None:
            self._fail(part.work, error)
        elif part.good_rows:
            self.dispatcher.queue.push(part, self._clock.monotonic())
            self.dispatcher.wake()
        else:
            self._parts_done([part])

    def _part_failed(self, part: Part, error: MeshError) -> None:
        self._fail(part.work, error)

    def _parts_done(self, parts: Sequence[Part]) -> None:
        """The parts have all that they need; some of their requests may be whole now."""
        whole = []
        for part in parts:
            part.where = Where.DONE
            work = part.work
            work.parts_left -= 1
            if work.parts_left == 0:
                whole.append(work)
        self._answer(whole)

    # The ends.

    def _answer(self, works: Sequence[Work]) -> None:
        """Reply to each; their receipts are written when the first reply leaves."""
        if not works:
            return
        answers = self._replies.make(works)
        self.breakers.answered(works, answers)
        for work, answer in zip(works, answers, strict=True):
            if isinstance(answer, MeshError):
                self._fail(work, answer)
            else:
                call = work.call
                if work.shadow is not None:
                    self.shadows.offer(work)
                self._end(work, Outcome.ANSWERED)
                call.reply(answer)
        self._poller.touched(self.works.count == 0)

    def _refuse(self, call: Call, error: MeshError) -> None:
        """The request ends at the door."""
        self.tally.count(outcome_of(error.name))
        name = call.body.model_name
        took_s = self._clock.monotonic() - call.received_s
        known = name if name in self.table.published else None
        self.observed.refused(known, error.name, took_s)
        self._access.refused(call, error)
        call.fail(error)

    def _fail(self, work: Work, error: MeshError) -> None:
        call, outcome = work.call, outcome_of(error.name)
        self._access.ended(work, error, outcome, self._clock.monotonic())
        self.observed.ended(work.plan, error.name)
        if error.name == "DEADLINE_EXCEEDED":
            self.observed.exceeded(error)
        self.breakers.failed(work, error)
        self._end(work, outcome)
        call.fail(error)

    def _cancelled(self, work: Work) -> None:
        """The caller cancelled or left; the call has ended already."""
        self._fail(work, MeshError("CANCELLED", "the caller cancelled or left"))

    def _end(self, work: Work, outcome: Outcome) -> None:
        """The one end of an admitted request: give back what it held, wherever its parts are."""
        parts = work.parts
        if work.probes is not None:
            self.breakers.probe_ended(work, is_answered=outcome is Outcome.ANSWERED)
        work.end(outcome)
        self.tally.count(outcome)
        self.works.discard(work)
        self._bounds.release(work.plan.name, work.body.tenant_id, work.rows, work.bytes)
        self._spool.release(work.reserved_bytes)
        if outcome is not Outcome.ANSWERED:
            self._forget(parts)
            if self.allowances.is_needed:
                name, tenant_id = work.plan.name, work.body.tenant_id
                units = work.tokens or work.rows
                self.allowances.give_back(name, tenant_id, units, self._clock.wall())

    def _forget(self, parts: Sequence[Part]) -> None:
        """Take the parts of a request that ended early from whoever has them."""
        for part in parts:
            if part.where is Where.FEATURES:
                self.features.forget(part)
            elif part.where is not Where.DONE:
                self.dispatcher.forget(part)

    # Deadlines.

    def _ring(self, now_s: float) -> float:
        """End what is past its deadline; when to look again."""
        for work in self.works.expired(now_s):
            if work.outcome is None:
                self._fail(work, late(work))
        for call in self._awaited.expired(now_s):
            call.expire()
        return min(self.works.next_s, self._awaited.next_s)

    def statistics(self) -> dict[str, Scalar]:
        """`infer_received` is the sum of the four ends and `infer_in_flight`."""
        tally, dispatcher = self.tally, self.dispatcher
        return {
            "infer_received": tally.received,
            "infer_answered": tally.answered,
            "infer_refused": tally.refused,
            "infer_failed": tally.failed,
            "infer_cancelled": tally.cancelled,
            "infer_in_flight": self.works.count + len(self._arrived),
            "queue_rows": dispatcher.queue.rows,
            "batches": dispatcher.batches,
            "parts_retried": dispatcher.retried,
            "retries_refused": dispatcher.retries.refused,
            **dispatcher.forecast.statistics(),
            "memory_shed": self.memory_gate.refused,
            "polls": self._poller.polls,
            "polls_in_vain": self._poller.in_vain,
            "features_calls": self.features.calls,
            "features_rows": self.features.rows,
            **self.breakers.statistics(),
            **self.shadows.statistics(),
        }
