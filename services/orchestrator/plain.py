"""The answer and the receipt of the commonest request, byte for byte what `answer.py` makes and
msgspec encodes: of a tensor model with one output, in one part, without a failed row.

Most of both is the same for every request of a version (`Mould`) or of a batch (`Shared`) and was
encoded before. msgspec writes a list of such pieces (`Raw`) and of what is a request's own; the
list's own header is dropped. That takes a third of making the structs and encoding them.
"""

from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from contracts.stages import STAGES
from contracts.types import UNSET
from services.orchestrator.combinations import Combined
from services.orchestrator.execution import Batch
from services.orchestrator.plan import ModelPlan
from services.orchestrator.request import Work
from services.orchestrator.routing import RouteTable
from services.orchestrator.spool import RECEIPT

plain_bytes_max: Final = 65_536
"""Of a batch's output: it is copied once to bytes, whose parts are cheaper to cut."""

_HEADER_BYTES: Final = 3
"""Of a list of 16 to 65,535 pieces."""
_UNSET: Final = UNSET
_RAW: Final = Raw
_encode: Final = msgspec.msgpack.Encoder().encode
_encode_into: Final = msgspec.msgpack.Encoder().encode_into
_ANSWER_HEAD = b"\xde\x00\x0c"
"""A map of 12, as msgspec writes one of a struct that may leave fields out."""
_RECEIPT_FIELDS: Final = 22
_RECEIPT_AT: Final = len(RECEIPT)
_RECEIPT_COUNT_AT: Final = _RECEIPT_AT + _HEADER_BYTES - 1


def _map(fields: int) -> bytes:
    assert fields < 16, "fixmap"
    return bytes((0x80 | fields,))


def _list(items: int) -> bytes:
    assert items < 16, "fixarray"
    return bytes((0x90 | items,))


def _raw(*parts: Any) -> Raw:
    """Bytes as they are, everything else encoded."""
    return Raw(b"".join([part if isinstance(part, bytes) else _encode(part) for part in parts]))


def new_record() -> bytearray:
    """For `conclude` to write into, again and again."""
    return bytearray(RECEIPT)


def is_plain(plan: ModelPlan) -> bool:
    """Whether the answers of this version can be made here."""
    return (
        plan.view is None and not plan.labels and plan.form == "inputs" and len(plan.outputs) == 1
    )


def is_plain_work(work: Work) -> bool:
    """Whether the answer to this request, whose version's are, can be made here."""
    parts = work.parts
    if len(parts) > 1 or work.outputs is not work.plan.every_output:
        return False
    part = parts[0]
    batch = part.batch
    return (
        not part.errors
        and batch is not None
        and batch.rows * work.plan.outputs[0].row_bytes <= plain_bytes_max
    )


class Mould:
    """What the answers and receipts of one version, under one table, as one variant, have in
    common; `instance` is ours."""

    def __init__(
        self, plan: ModelPlan, table: RouteTable, variant: str, combined: Combined, instance: str
    ) -> None:
        self.plan = plan
        self.table = table
        self.variant = variant
        self.combined = combined
        output, is_degraded = plan.outputs[0], variant == "fallback"
        marks: list[str] = []
        self.opening = _raw(_ANSWER_HEAD, "id")
        self.trace = _raw("trace_id")
        self.model = _raw(
            "model_name", plan.name, "model_version", plan.version,
            "policy_version", table.version, "variant", variant, "degraded", is_degraded,
            "marks", marks, "outputs", _list(1), _map(4), "name", output.name,
            "datatype", output.datatype, "shape", _list(1 + len(output.row_shape)),
        )  # fmt: skip
        self.shape = _raw(*output.row_shape, "data")
        self.usage = _raw("usage", _map(3), "rows")
        self.total = _raw("tokens_in", 0, "tokens_out", 0, "timing_us", _map(10), "total")
        self.queue = _raw("queue")
        self.hops = _raw("hops", _list(2), _map(3), "instance", instance, "received", 0, "sent")
        self.sent = _raw("sent")
        self.lineage = _raw("lineage", bytes(combined.lineage))
        self.receipt = _raw(
            "ok", plan.name, plan.version, table.version, combined.snapshot, variant, is_degraded,
            marks,
        )  # fmt: skip
        self.tokens = _raw(0, 0)
        self.stages = Raw(_list(len(STAGES)))
        self.receipt_hops = _raw(_list(2), _list(3), instance, 0)


class Shared:
    """What the answers and receipts of one batch have in common. Microseconds; `stages_us` is the
    sum of the stages from batch to postprocess."""

    def __init__(self, batch: Batch) -> None:
        executed, instance = batch.executed, batch.instance
        assert executed is not None, "it was answered"
        gathered, transfer, tokenize, forward, postprocess = batch.stages_us
        self.received_us = executed.received_us
        self.sent_us = executed.sent_us
        self.forward_us = executed.forward_us
        self.stages_us = gathered + transfer + tokenize + forward + postprocess
        self.output = bytes(cast(memoryview, executed.outputs[0].data))
        self.stages = _raw(
            "features", 0, "batch", gathered, "transfer", transfer, "tokenize", tokenize,
            "forward", forward, "postprocess", postprocess, "reply",
        )  # fmt: skip
        self.hop = _raw(_map(3), "instance", instance, "received")
        self.receipt_stages = _raw(0, gathered, transfer, tokenize, forward, postprocess)
        self.receipt_hop = _raw(_list(3), instance)


def conclude(
    work: Work, mould: Mould, at_us: int, replied_s: float, record: bytearray
) -> tuple[Raw, int, int, int]:
    """The answer, and its total, queue and reply in microseconds (see `stamps.timing`); the receipt
    is left in `record`, as the spool keeps it."""
    part = work.parts[0]
    batch = part.batch
    assert batch is not None, "a request with a good row was in a batch"
    shared = batch.shared
    if shared is None:
        shared = batch.shared = Shared(batch)
    queue = int((batch.taken_s - work.received_s) * 1e6)
    if queue < 0:
        queue = 0
    reply = int((replied_s - batch.answered_s) * 1e6)
    total = queue + shared.stages_us + reply
    start = int(work.received_s * 1e6)
    size = mould.plan.outputs[0].row_bytes
    first = part.batch_row * size
    # Numbers that both messages hold become objects once.
    rows: object = work.rows
    total_us: object = total
    queue_us: object = queue
    reply_us: object = reply
    received_us: object = shared.received_us - start
    sent_us: object = shared.sent_us - start
    call, body, request_id = work.call, work.body, work.request_id
    trace_id, entity = call.trace_id, body.entity
    answer: list[object] = [
        mould.opening, request_id, mould.trace, trace_id, mould.model, rows, mould.shape,
        shared.output[first : first + work.rows * size], mould.usage, rows, mould.total, total_us,
        mould.queue, queue_us, shared.stages, reply_us, mould.hops, total_us, shared.hop,
        received_us, mould.sent, sent_us, mould.lineage,
    ]  # fmt: skip
    receipt: list[object] = [
        body.tenant_id, request_id, trace_id, at_us, mould.receipt, body.risk_level, call.peer.uid,
        rows, mould.tokens, shared.forward_us * work.rows // batch.rows, total_us, mould.stages,
        queue_us, shared.receipt_stages, reply_us, mould.receipt_hops, total_us, shared.receipt_hop,
        received_us, sent_us, "" if entity is _UNSET else entity,
    ]  # fmt: skip
    _encode_into(receipt, record, _RECEIPT_AT)
    record[_RECEIPT_COUNT_AT] = _RECEIPT_FIELDS
    return _RAW(_encode(answer)[_HEADER_BYTES:]), total, queue, reply
