"""The one list of stages, and how the default budget is shared among them.

The reply's timing, the budget shares, the metric `ai_stage_seconds` and the receipts all use
these words in this order.
"""

from typing import Literal, get_args

from contracts.types import Open

Stage = Literal[
    "queue", "features", "batch", "transfer", "tokenize", "forward", "postprocess", "reply"
]
STAGES: tuple[str, ...] = get_args(Stage)

INFER_P99_MS = 150
"""K3: end to end p99 by default."""
BUDGET_MS: dict[str, int] = {
    "queue": 25,
    "features": 30,
    "batch": 10,
    "transfer": 5,
    "tokenize": 15,
    "forward": 55,
    "postprocess": 5,
    "reply": 5,
}

assert tuple(BUDGET_MS) == STAGES, "every stage has a share, in the list's order"
assert sum(BUDGET_MS.values()) <= INFER_P99_MS, "the parts sum to no more than the whole"


class Hop(Open, frozen=True, kw_only=True):
    """One process that a request crossed; microseconds since the orchestrator had the frame."""

    instance: str
    received: int
    sent: int


class Timing(Open, frozen=True, kw_only=True):
    """Microseconds per stage; `total` is from the whole frame received to the reply written."""

    total: int
    queue: int
    features: int
    batch: int
    transfer: int
    tokenize: int
    forward: int
    postprocess: int
    reply: int
    hops: list[Hop]
