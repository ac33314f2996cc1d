"""One request's life: its parts, and the one way it ends.

A request is divided into parts of at most a batch's rows; a part is what gets features, waits and
joins batches. Rules: a part is in one place at a time; a request ends exactly once; once it ended,
none of its parts does anything more, and what they held is let go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import UNSET, Raw, UnsetType

from contracts.errors import ErrorBody
from contracts.features import RefusedRow
from contracts.inference import InferenceRequest, Prediction, Variant

if TYPE_CHECKING:
    from services.orchestrator.breaker import Breaker
    from services.orchestrator.execution import Batch
    from services.orchestrator.fairness import Flow
    from services.orchestrator.micro_batch import FeatureAnswer, FeatureCall
    from services.orchestrator.plan import ModelPlan
    from services.orchestrator.routing import RouteTable
    from shared.rpc.server import Call

Bytes = bytes | memoryview


class Outcome(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Where(StrEnum):
    """Which stage holds a part; names the hop of a missed deadline."""

    FEATURES = "features"
    QUEUE = "queue"
    EXECUTE = "execute"
    DONE = "done"


_FAILURES = frozenset(
    {
        "DEADLINE_EXCEEDED", "FORWARD_FAILED", "INTERNAL", "MEMORY_EXHAUSTED", "OUTPUT_INVALID",
        "UNAVAILABLE",
    }
)  # fmt: skip
"""Errors of ours; the others turn a request away for what it is or for the load."""


def outcome_of(error: str) -> Outcome:
    """How a request ended that got this error."""
    if error == "CANCELLED":
        return Outcome.CANCELLED
    return Outcome.FAILED if error in _FAILURES else Outcome.REFUSED


@dataclass(slots=True)
class Tally:
    """Requests received and how they ended: `received` = the four outcomes + those in flight."""

    received: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    cancelled: int = 0

    def count(self, outcome: Outcome) -> None:
        """One request ended."""
        if outcome is Outcome.ANSWERED:
            self.answered += 1
        elif outcome is Outcome.REFUSED:
            self.refused += 1
        elif outcome is Outcome.FAILED:
            self.failed += 1
        else:
            self.cancelled += 1


class Part:
    """Rows `start` … `start + rows` of a request; `bytes` is the size of its input.

    Either `tensors` (data in the order of the contract's inputs) or `raw_rows` is the input; of a
    token model `lengths` says how long each row is, `longest` the longest, and `tokens` is their
    sum (see `tokens`). `charge` is what stands for it in the fair order, in rows of a full batch;
    `is_alone`: it travels in a batch of its own.
    `block` holds the encoded features of the `good_rows` that passed the view's contract, `refused`
    says why the others did not. What came back is in `batch`, from its row `batch_row` on;
    `predictions` and `errors` (by good row) are this part's. Times are monotonic seconds;
    `features_s` is a duration.
    """

    block: Raw | None = None
    asked: "FeatureCall | None" = None
    features: "FeatureAnswer | None" = None
    freshness_s: float | None = None
    refused: Sequence[RefusedRow] = ()
    predictions: Raw | None = None
    checked: Sequence[Prediction] = ()
    errors: dict[int, ErrorBody] | None = None
    flow: "Flow | None" = None
    batch: "Batch | None" = None
    batch_row = 0
    retries = 0
    tokens = 0
    longest = 0
    charge = 0
    is_alone = False
    lengths: Sequence[int] = ()
    entered_s = 0.0
    features_s = 0.0

    def __init__(
        self,
        work: "Work",
        start: int,
        rows: int,
        size: int,
        tensors: Sequence[Bytes] = (),
        raw_rows: Raw | UnsetType = UNSET,
    ) -> None:
        self.where = Where.DONE
        self.work = work
        self.start = start
        self.rows = self.good_rows = rows
        self.bytes = size
        self.tensors = tensors
        self.raw_rows = raw_rows


class Work:
    """An admitted request under the policies of `table`. `outputs` are the indices of those of the
    contract's outputs that it wants, `bytes` the size of its input, `reserved_bytes` that of its
    receipt; `slot` is the wheel's. `probes` is the half-open breaker that it probes for, `shadow`
    the version that gets a copy of it; `tokens` counts the ids that are billed."""

    outcome: Outcome | None = None
    tokens = 0
    parts: Sequence[Part] = ()
    parts_left = 0
    slot = 0
    probes: "Breaker | None" = None
    shadow: "ModelPlan | None" = None

    def __init__(
        self,
        call: "Call",
        table: "RouteTable",
        plan: "ModelPlan",
        variant: Variant,
        request_id: str,
        outputs: Sequence[int],
        rows: int,
        size: int,
        reserved_bytes: int,
    ) -> None:
        self.call = call
        self.body: InferenceRequest = call.body
        self.table = table
        self.plan = plan
        self.variant = variant
        self.request_id = request_id
        self.outputs = outputs
        self.rows = rows
        self.bytes = size
        self.reserved_bytes = reserved_bytes
        self.received_s = call.received_s
        self.deadline_s = call.deadline_s

    def end(self, outcome: Outcome) -> None:
        """The request is over; what it held is dropped, so that nothing of it outlives its answer
        and no cycle is left. A second end is a programmer's error."""
        assert self.outcome is None, f"request {self.call.trace_id} ended twice"
        self.outcome = outcome
        self.parts = ()
        self.call.on_cancel = None
