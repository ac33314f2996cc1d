"""One batch from the orchestrator to a runtime and its answer, each a single frame.

Tensors of a batch are concatenated along the row axis by the orchestrator, which has checked each
request against the model's contract; the answer's tensors are sliced by it the same way. So the
runtime does no work per request. New fields are appended with a default.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from contracts.errors import ErrorBody
from contracts.inference import Tensor
from contracts.limits import batch_items_max
from contracts.types import Open


class Execute(msgspec.Struct, frozen=True, array_like=True):
    """A batch of requests for one model version, in order.

    `rows`, `risk_levels`, `deadlines_us` (what remains, in microseconds) have one entry a request.
    Exactly one of `tensors` (all rows joined), `blocks` (an encoded FeatureBlock a request,
    spliced unopened) and `text` (one string a row) is not empty.

    Of a token model the rows differ in length and are not padded on the way: `lengths` has one
    entry a row, and each of `tensors` holds the rows one after the other, [sum of `lengths`]:
    `input_ids` INT32, then, unless every id counts, `attention_mask` UINT8 of 0 and 1. The runtime
    pads them.
    """

    model_name: str
    model_version: str
    rows: Annotated[list[int], Meta(min_length=1, max_length=batch_items_max)]
    risk_levels: list[int]
    deadlines_us: list[int]
    tensors: list[Tensor] = []
    blocks: list[msgspec.Raw] = []
    text: list[str] = []
    trace_ids: list[str] = []
    lengths: list[int] = []


class Executed(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a batch.

    `outputs` holds every row of the batch, a failed row as zeros. `predictions` has, for a
    classifier, one encoded list of `Prediction` a request (its good rows), else is empty.
    `errors` maps a row's index in the batch to its error. `received_us` and `sent_us` are absolute
    monotonic microseconds; the other times are durations. `credits` is how many further batches
    the runtime takes now.
    """

    outputs: list[Tensor]
    predictions: list[msgspec.Raw]
    errors: dict[int, ErrorBody]
    received_us: int
    sent_us: int
    wait_us: int
    tokenize_us: int
    forward_us: int
    postprocess_us: int
    credits: int


class Memory(Open, frozen=True, kw_only=True):
    """Bytes that this runtime uses. Of `budget_bytes` (`[runtime] memory_mib_max`) the versions
    held were predicted to take `predicted_bytes` before each was loaded; `measured_bytes` is what
    loading the ready ones took: mapped weights, and by how much private memory grew meanwhile."""

    rss_bytes: int
    weights_bytes: int
    private_bytes: int
    budget_bytes: int = 0
    predicted_bytes: int = 0
    measured_bytes: int = 0
