"""A batch: its one `execute` frame, and what of the answer belongs to which part.

The answer is checked against the model's contract here: what breaks it never leaves (K5).
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import Raw

from contracts.errors import ErrorBody, MeshError
from contracts.execution import Execute, Executed
from contracts.inference import Tensor
from contracts.methods import METHODS
from services.orchestrator.output_contract import check_outputs
from services.orchestrator.plan import ModelPlan, TensorPlan
from services.orchestrator.request import Part, Where
from services.orchestrator.stamps import batch_stages
from services.orchestrator.tokens import join_tokens
from shared.deadline import remaining_us, share_deadline

if TYPE_CHECKING:
    from services.orchestrator.plain import Shared
    from services.orchestrator.replica import Replica
    from services.orchestrator.replicas import Replicas

_timeout_s = METHODS["model_runtime"]["execute"].budget.timeout_ms / 1_000


class Batch:
    """Parts that travel together: `open` of them belong to requests that have not ended.

    `is_out` from being sent until it is answered, lost or given up; `was_kept_back` until its
    runtime was nearly done; `stages_us` are the stages that its parts have in common.
    `has_own_deadline`: it ends before the last of its requests does. `expected_s`: how long its
    forward should take, 0 where that is not known. `deadline_s` and `slot` are the wheel's; times
    are monotonic seconds.

    Of a token model: `tokens` as computed (`rows` · the longest), `tokens_real` without padding;
    `charge` see `Part`; `is_lone`: of one part that goes alone.
    """

    replicas: "Replicas"
    replica: "Replica | None" = None
    executed: Executed | None = None
    shared: "Shared | None" = None
    """What the answers to its parts have in common (`plain.py`)."""
    stages_us: Sequence[int] = ()
    is_out = False
    was_kept_back = False
    instance = ""
    msgid = -1
    expected_s = 0.0
    tokens = 0
    tokens_real = 0
    charge = 0
    is_lone = False
    sent_s = 0.0
    answered_s = 0.0
    slot = 0

    def __init__(self, plan: ModelPlan, parts: list[Part], now_s: float) -> None:
        self.plan = plan
        self.parts = parts
        self.open = len(parts)
        self.taken_s = now_s
        row, latest_s = 0, 0.0
        for part in parts:
            part.where = Where.EXECUTE
            part.batch = self
            part.batch_row = row
            row += part.good_rows
            latest_s = max(latest_s, part.work.deadline_s)
        self.rows = row
        if plan.tokens is not None:
            self.tokens = row * max([part.longest for part in parts])
            self.tokens_real = sum([part.tokens for part in parts])
            self.charge = sum([part.charge for part in parts])
            self.is_lone = parts[0].is_alone
        self.deadline_s = share_deadline(latest_s, now_s, _timeout_s)
        self.has_own_deadline = self.deadline_s < latest_s

    def expire(self) -> None:
        """The wheel's: the runtime did not answer within its share."""
        self.replicas.give_up(self)

    def answered(self, executed: Executed | None, error: MeshError | None) -> None:
        """The RPC client's callback."""
        self.replicas.answered(self, executed, error)

    def encode(self, now_s: float) -> Execute:
        """The frame's body: each input's rows joined, or the blocks spliced."""
        parts, plan = self.parts, self.plan
        rows, risk_levels, deadlines_us, trace_ids = [], [], [], []
        for part in parts:
            work = part.work
            rows.append(part.good_rows)
            risk_levels.append(work.body.risk_level)
            deadlines_us.append(remaining_us(work.deadline_s, now_s))
            trace_ids.append(work.call.trace_id)
        tensors: list[Tensor] = []
        blocks: list[Raw] = []
        lengths: list[int] = []
        if plan.tokens is not None:
            tensors, lengths = join_tokens(parts)
        elif plan.view is None:
            tensors = [self._join(index, tensor) for index, tensor in enumerate(plan.inputs)]
        else:
            blocks = [part.block for part in parts if part.block is not None]
        return Execute(
            model_name=plan.name,
            model_version=plan.version,
            rows=rows,
            risk_levels=risk_levels,
            deadlines_us=deadlines_us,
            tensors=tensors,
            blocks=blocks,
            trace_ids=trace_ids,
            lengths=lengths,
        )

    def _join(self, index: int, plan: TensorPlan) -> Tensor:
        """One input of every part; a single one is not copied."""
        parts = self.parts
        data = parts[0].tensors[index]
        if len(parts) > 1:
            data = b"".join([part.tensors[index] for part in parts])
        shape = [self.rows, *plan.row_shape]
        return Tensor(name=plan.name, datatype=plan.datatype, shape=shape, data=memoryview(data))

    def deliver(self, executed: Executed) -> None:
        """Take the answer, of which each part has its rows from `batch_row` on.

        Raises OUTPUT_INVALID when the answer as a whole breaks the contract.
        """
        check_outputs(executed, self.plan, len(self.parts), self.rows)
        self.executed = executed
        self.stages_us = batch_stages(self.taken_s, self.sent_s, self.answered_s, executed)
        for part, predictions in zip(self.parts, executed.predictions, strict=False):
            part.predictions = predictions
        if executed.errors:
            self._deliver_errors(executed.errors)

    def _deliver_errors(self, errors: dict[int, ErrorBody]) -> None:
        ends = list(accumulate(part.good_rows for part in self.parts))
        for row, error in errors.items():
            part = self.parts[index := bisect_right(ends, row)]
            if part.errors is None:
                part.errors = {}
            part.errors[row - (ends[index] - part.good_rows)] = error
