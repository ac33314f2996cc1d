"""Where a request's time went: microseconds per stage and per hop since its frame arrived.

Stamps of other processes are absolute monotonic microseconds, which compare on one machine.
"""

from contracts.errors import MeshError
from contracts.stages import STAGES, Hop, Timing
from services.orchestrator.execution import Batch
from services.orchestrator.request import Where, Work


def stage_times(batch: Batch, work: Work, features_s: float, replied_s: float) -> list[int]:
    """Microseconds in the order of STAGES, of a request whose last part came back with `batch`
    after `features_s` seconds at the fabric; they sum to the time from received to replied, to a
    microsecond.

    `queue` is everything before the batch but features, `batch` assembling it and waiting for the
    runtime's compute, `transfer` what the runtime did not account for between sending and answer.
    """
    start_s, executed = work.received_s, batch.executed
    assert executed is not None, "the batch was answered"
    taken = int((batch.taken_s - start_s) * 1e6)
    sent = int((batch.sent_s - start_s) * 1e6)
    answered = int((batch.answered_s - start_s) * 1e6)
    features = min(int(features_s * 1e6), taken)
    wait, tokenize = executed.wait_us, executed.tokenize_us
    forward, postprocess = executed.forward_us, executed.postprocess_us
    # Both sides cut to whole microseconds: a transfer of nothing may come out as −1.
    transfer = max(0, answered - sent - wait - tokenize - forward - postprocess)
    reply = int((replied_s - start_s) * 1e6) - answered
    gathered = sent - taken + wait
    return [taken - features, features, gathered, transfer, tokenize, forward, postprocess, reply]


def timing(stages_us: list[int], hops: list[Hop]) -> Timing:
    """The reply's timing."""
    queue, features, batch, transfer, tokenize, forward, postprocess, reply = stages_us
    return Timing(
        total=sum(stages_us),
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


assert len(STAGES) == 8, "stage_times and timing name every stage"


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
