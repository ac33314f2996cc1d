"""Turns a request whose parts are done into its answer, with the receipt written first."""

from collections.abc import Sequence

import msgspec

from contracts.errors import MeshError
from contracts.features import FeatureLineage
from contracts.inference import InferenceResponse
from contracts.stages import Hop
from services.orchestrator.access_log import AccessLog
from services.orchestrator.answer import answer_of, receipt_of, statuses
from services.orchestrator.combinations import Combinations
from services.orchestrator.execution import Batch
from services.orchestrator.observe import Observed
from services.orchestrator.request import Part, Work
from services.orchestrator.spool import Spool
from services.orchestrator.stamps import stage_times, timing
from shared.clock import Clock

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

    def make(self, works: Sequence[Work]) -> list[InferenceResponse | MeshError]:
        """Check each answer and write its receipt, in order.

        Where there is an error nothing was written: OUTPUT_INVALID, the error of the rows when none
        is good, UNAVAILABLE when the parts' features do not belong together, DISK_FULL.
        """
        at_us = self._clock.wall_us()
        answers: list[InferenceResponse | MeshError] = []
        for work in works:
            try:
                answers.append(self._make(work, at_us))
            except MeshError as error:
                answers.append(error)
        return answers

    def _make(self, work: Work, at_us: int) -> InferenceResponse:
        items = statuses(work)
        parts = work.parts
        last = parts[0] if len(parts) == 1 else max(parts, key=_answered_s)
        batch = last.batch
        assert batch is not None, "a request with a good row was in a batch"
        lineage = None if work.plan.view is None else _lineage_of(work)
        combined = self._combinations.of(work.plan, work.table, lineage)
        stages_us = stage_times(work, last.features_s, batch, self._clock.monotonic())
        total_us = sum(stages_us)
        times = timing(stages_us, total_us, self._hops(work, last, batch, total_us))
        answer = answer_of(work, combined, times, items)
        receipt = receipt_of(work, answer, combined.snapshot, at_us, stages_us)
        self._spool.append(_encode(receipt), combined)
        self._access.answered(work, stages_us, times.hops)
        self._observed.answered(work.plan, stages_us)
        return answer

    def _hops(self, work: Work, last: Part, batch: Batch, total_us: int) -> list[Hop]:
        """This process, the fabric where it was asked, the runtime."""
        start_us = int(work.received_s * 1e6)
        executed, fabric = batch.executed, last.features
        assert executed is not None, "the batch was answered"
        hops = [
            Hop(instance=self._instance, received=0, sent=total_us),
            Hop(
                instance=batch.instance,
                received=executed.received_us - start_us,
                sent=executed.sent_us - start_us,
            ),
        ]
        if fabric is not None:
            received, sent = fabric.received_us - start_us, fabric.sent_us - start_us
            hops.insert(1, Hop(instance=fabric.instance, received=received, sent=sent))
        return hops


def _lineage_of(work: Work) -> FeatureLineage:
    """The one that all parts' features have."""
    lineages = {part.features.lineage for part in work.parts if part.features is not None}
    if len(lineages) != 1:
        raise MeshError("UNAVAILABLE", "the view's sources changed within the request")
    return lineages.pop()


def _answered_s(part: Part) -> float:
    return 0.0 if part.batch is None else part.batch.answered_s
