"""Where a request's time went: microseconds per stage and per hop since its frame arrived.

Stamps of other processes are absolute monotonic microseconds, which compare on one machine.
"""

from typing import TYPE_CHECKING

from contracts.errors import MeshError
from contracts.execution import Executed
from contracts.stages import STAGES, Hop, Timing
from services.orchestrator.request import Where, Work

if TYPE_CHECKING:
    from services.orchestrator.execution import Batch


def batch_stages(taken_s: float, sent_s: float, answered_s: float, executed: Executed) -> list[int]:
    """Microseconds from a batch's forming to its answer, the same for all of its requests: batch,
    transfer, tokenize, forward, postprocess.

    `batch` is assembling it and waiting for the runtime's compute, `transfer` what the runtime did
    not account for between sending and answer.
    """
    wait, tokenize = executed.wait_us, executed.tokenize_us
    forward, postprocess = executed.forward_us, executed.postprocess_us
    away = int((answered_s - sent_s) * 1e6)
    # Both sides cut to whole microseconds: a transfer of nothing may come out as −1.
    transfer = max(0, away - wait - tokenize - forward - postprocess)
    return [int((sent_s - taken_s) * 1e6) + wait, transfer, tokenize, forward, postprocess]


def stage_times(work: Work, features_s: float, batch: "Batch", replied_s: float) -> list[int]:
    """Microseconds in the order of STAGES of a request whose last part came back with `batch`,
    after `features_s` seconds at the fabric; they sum to the time from the frame to the reply."""
    features = int(features_s * 1e6)
    queue = int((batch.taken_s - work.received_s) * 1e6) - features
    reply = int((replied_s - batch.answered_s) * 1e6)
    return [max(0, queue), features, *batch.stages_us, reply]


def timing(stages_us: list[int], total_us: int, hops: list[Hop]) -> Timing:
    """The reply's timing; `total_us` is the sum of the stages."""
    queue, features, batch, transfer, tokenize, forward, postprocess, reply = stages_us
    return Timing(
        total=total_us,
        queue=queue,
        features=features,
        batch=batch,
        transfer=transfer,
        tokenize=tokenize,
        forward=forward,
        postprocess=postprocess,
        reply=reply,
        hops=hops,
    )


assert STAGES[2:7] == ("batch", "transfer", "tokenize", "forward", "postprocess")


def late(work: Work) -> MeshError:
    """DEADLINE_EXCEEDED, naming the stage and the process that had the request."""
    part = next(part for part in work.parts if part.where is not Where.DONE)
    hop = "orchestrator"
    if part.where is Where.FEATURES:
        hop = "data_fabric"
    elif part.where is Where.EXECUTE and part.batch is not None:
        hop = part.batch.instance
    limit_ms = round((work.deadline_s - work.received_s) * 1e3)
    return MeshError(
        "DEADLINE_EXCEEDED",
        f"the deadline of {limit_ms} ms passed in {part.where.value} at {hop}",
        details={"stage": part.where.value, "hop": hop, "deadline_ms": limit_ms},
    )
