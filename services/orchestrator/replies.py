"""Turns a request whose parts are done into its answer, with the receipt written first."""

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from contracts.errors import MeshError
from contracts.features import FeatureLineage
from contracts.inference import InferenceResponse, Item
from contracts.types import UNSET, UnsetType
from services.orchestrator.access_log import AccessLog
from services.orchestrator.answer import answer_of, receipt_of, statuses
from services.orchestrator.combinations import Combinations
from services.orchestrator.observe import Observed
from services.orchestrator.plain import Mould, conclude, is_plain, is_plain_work, new_record
from services.orchestrator.request import Part, Work
from services.orchestrator.spool import Spool
from services.orchestrator.stamps import timing
from shared import logs
from shared.clock import Clock

log = logs.get("services.orchestrator.replies")

_encode = msgspec.msgpack.Encoder().encode


class Replies:
    """Makes answers; what they have in common is encoded once."""

    def __init__(
        self,
        instance: str,
        combinations: Combinations,
        spool: Spool,
        clock: Clock,
        observed: Observed,
        access: AccessLog,
    ) -> None:
        self._instance = instance
        self._combinations = combinations
        self._spool = spool
        self._clock = clock
        self._observed = observed
        self._access = access
        self._record = new_record()
        self._latest: Mould | None = None

    def make(self, works: Sequence[Work]) -> list[InferenceResponse | Raw | MeshError]:
        """Check each answer and write its receipt, in order.

        Where there is an error nothing was written: OUTPUT_INVALID, the error of the rows when none
        is good, UNAVAILABLE when the parts' features do not belong together, DISK_FULL; INTERNAL
        for a defect, which is that request's alone.
        """
        at_us = self._clock.wall_us()
        answers: list[InferenceResponse | Raw | MeshError] = []
        for work in works:
            try:
                mould = self._mould_of(work)
                if mould is None:
                    answers.append(self._make(work, at_us))
                else:
                    answers.append(self._make_plainly(work, mould, at_us))
            except MeshError as error:
                answers.append(error)
            except Exception:
                log.exception("answer_defect", trace_id=work.call.trace_id)
                text = "a defect; the log has it under the trace id"
                answers.append(MeshError("INTERNAL", text))
        return answers

    def _mould_of(self, work: Work) -> Mould | None:
        """Of a plain answer; None: it has more to it."""
        mould, plan = self._latest, work.plan
        if (
            mould is None
            or mould.plan is not plan
            or mould.table is not work.table
            or mould.variant != work.variant
        ):
            if not is_plain(plan):
                return None
            combined = self._combinations.of(plan, work.table, None)
            mould = Mould(plan, work.table, work.variant, combined, self._instance)
            self._latest = mould
        return mould if is_plain_work(work) else None

    def _make_plainly(self, work: Work, mould: Mould, at_us: int) -> Raw:
        replied_s = self._clock.monotonic()
        answer, total, queue, reply = conclude(work, mould, at_us, replied_s, self._record)
        self._spool.append_record(self._record, mould.combined)
        if self._access.is_due():
            stages_us, times = timing(work, work.parts[0], self._instance, replied_s)
            self._access.answered(work, stages_us, times.hops)
        self._observed.answered(mould.plan, total, queue, 0, reply)
        return answer

    def _make(self, work: Work, at_us: int) -> InferenceResponse:
        plan, last = work.plan, work.parts[0]
        items: list[Item] | UnsetType = UNSET
        lineage = None
        if plan.view is not None or plan.labels or len(work.parts) > 1 or last.errors:
            items = statuses(work)
            last = max(work.parts, key=_answered_s)
            lineage = None if plan.view is None else _lineage_of(work)
        combined = self._combinations.of(plan, work.table, lineage)
        stages_us, times = timing(work, last, self._instance, self._clock.monotonic())
        answer = answer_of(work, combined, times, items)
        receipt = receipt_of(work, answer, combined.snapshot, at_us, stages_us)
        self._spool.append(_encode(receipt), combined)
        if self._access.is_due():
            self._access.answered(work, stages_us, times.hops)
        self._observed.answered(plan, times.total, times.queue, times.features, times.reply)
        if answer.freshness_s is not UNSET:
            self._observed.featured(plan, "stale" in answer.marks)
        return answer


def _lineage_of(work: Work) -> FeatureLineage:
    """The one that all parts' features have."""
    lineages = {part.features.lineage for part in work.parts if part.features is not None}
    if len(lineages) != 1:
        raise MeshError("UNAVAILABLE", "the view's sources changed within the request")
    return lineages.pop()


def _answered_s(part: Part) -> float:
    return 0.0 if part.batch is None else part.batch.answered_s
