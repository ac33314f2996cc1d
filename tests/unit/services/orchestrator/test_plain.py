"""Answers and receipts put together from pieces, against those that msgspec encodes."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from contracts.lineage import Receipt
from services.orchestrator.answer import answer_of, receipt_of
from services.orchestrator.combinations import Combinations
from services.orchestrator.execution import Batch
from services.orchestrator.plain import (
    Mould,
    conclude,
    is_plain,
    is_plain_work,
    new_record,
    plain_bytes_max,
)
from services.orchestrator.request import Part
from services.orchestrator.spool import RECEIPT
from services.orchestrator.stamps import timing
from tests.unit.services.orchestrator.making import executed, part_for, plan_for

TINY = plan_for()
INSTANCE = "orchestrator.0-x"
COMBINATIONS = Combinations("sha256:" + "1" * 64)
MOMENTS = st.floats(0.0, 40.0, allow_subnormal=False)
COUNTS = st.integers(0, 2**33)
encode = msgspec.msgpack.encode


def run(parts: list[Part], taken_s: float = 100.1, **answer: Any) -> Batch:
    """Execute the parts in one batch."""
    batch = Batch(TINY, parts, taken_s)
    batch.sent_s, batch.answered_s = taken_s + 0.1, taken_s + 0.2
    batch.instance = "model_runtime.0-x"
    batch.deliver(executed(batch.rows, **answer))
    return batch


def check(part: Part, replied_s: float, variant: Any = "default") -> None:
    """Both ways give the same bytes."""
    work = part.work
    work.variant = variant
    combined = COMBINATIONS.of(work.plan, work.table, None)
    stages_us, times = timing(work, part, INSTANCE, replied_s)
    answer = answer_of(work, combined, times, msgspec.UNSET)
    receipt = receipt_of(work, answer, combined.snapshot, 1_700_000_000_000_000, stages_us)
    mould = Mould(work.plan, work.table, variant, combined, INSTANCE)
    record = new_record()
    assert is_plain(work.plan)
    assert is_plain_work(work)
    for _ in range(2):  # the record is written over
        made, total, queue, reply = conclude(work, mould, receipt.at_us, replied_s, record)
        assert bytes(made) == encode(answer)
        assert bytes(record) == RECEIPT + encode(receipt)
        assert (total, queue, reply) == (times.total, times.queue, times.reply)
    assert msgspec.msgpack.decode(record[1:], type=Receipt) == receipt


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    MOMENTS,
    MOMENTS,
    st.tuples(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS),
    st.sampled_from(["default", "fallback", "split"]),
)
def test_the_pieces_make_the_same_bytes(
    rows: list[int], taken_s: float, reply_s: float, us: tuple[int, ...], variant: str
) -> None:
    """Whatever the numbers, of every part of a batch: rows, stages, hops, shares of the forward."""
    parts = [part_for(TINY, count) for count in rows]
    received_us, sent_us, wait_us, tokenize_us, forward_us, postprocess_us = us
    batch = run(
        parts, 99.0 + taken_s, received_us=received_us, sent_us=sent_us, wait_us=wait_us,
        tokenize_us=tokenize_us, forward_us=forward_us, postprocess_us=postprocess_us,
    )  # fmt: skip
    for part in parts:
        check(part, batch.answered_s + reply_s, variant)


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40), st.integers(1, 3))
def test_texts_of_the_request_are_written_as_they_are(
    request_id: str, tenant_id: str, entity: str, risk_level: int
) -> None:
    """Ids, tenant and entity of any length and script."""
    part = part_for(
        TINY, 2, id=request_id, tenant_id=tenant_id, entity=entity, risk_level=risk_level
    )
    run([part])
    check(part, 100.4)


def test_what_has_more_to_it_is_left_to_the_other_way() -> None:
    """A second part, a failed row, a choice of outputs, an output too large to copy."""
    part = part_for(TINY)
    run([part])
    work = part.work
    assert is_plain_work(work)
    work.parts = [part, part]
    assert not is_plain_work(work)
    work.parts = [part]
    work.outputs = [0]
    assert not is_plain_work(work)
    work.outputs = work.plan.every_output
    assert part.batch is not None
    part.batch.rows = plain_bytes_max
    assert not is_plain_work(work)
