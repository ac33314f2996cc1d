"""Where a request's time went: microseconds per stage and per hop since its frame arrived.

Stamps of other processes are absolute monotonic microseconds, which compare on one machine.
"""

from contracts.errors import MeshError
from contracts.execution import Executed
from contracts.stages import STAGES, Hop, Timing
from services.orchestrator.request import Part, Where, Work
from shared.deadline import exceeded


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


def timing(work: Work, last: Part, instance: str, replied_s: float) -> tuple[list[int], Timing]:
    """Microseconds in the order of STAGES, and the reply's timing, of a request whose `last` part
    came back with its batch. The stages sum to `total`, the time from the frame to the reply.
    """
    batch, fabric = last.batch, last.features
    assert batch is not None, "a request with a good row was in a batch"
    assert batch.executed is not None, "which was answered"
    features = int(last.features_s * 1e6)
    queue = max(0, int((batch.taken_s - work.received_s) * 1e6) - features)
    gathered, transfer, tokenize, forward, postprocess = batch.stages_us
    reply = int((replied_s - batch.answered_s) * 1e6)
    stages = [queue, features, gathered, transfer, tokenize, forward, postprocess, reply]
    total = sum(stages)
    start = int(work.received_s * 1e6)
    executed = batch.executed
    received, sent = executed.received_us - start, executed.sent_us - start
    hops = [
        Hop(instance=instance, received=0, sent=total),
        Hop(instance=batch.instance, received=received, sent=sent),
    ]
    if fabric is not None:
        received, sent = fabric.received_us - start, fabric.sent_us - start
        hops.insert(1, Hop(instance=fabric.instance, received=received, sent=sent))
    return stages, Timing(
        total=total,
        queue=queue,
        features=features,
        batch=gathered,
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
    text = f"the deadline of {limit_ms} ms passed in {part.where.value} at {hop}"
    return exceeded(text, part.where.value, hop, limit_ms)


def silent(where: Where, hop: str, share_s: float) -> MeshError:
    """DEADLINE_EXCEEDED of a process that used up its share; `deadline_ms` is that share."""
    share_ms = round(share_s * 1e3)
    text = f"{hop} did not answer within its share of {share_ms} ms in {where.value}"
    return exceeded(text, where.value, hop, share_ms)
