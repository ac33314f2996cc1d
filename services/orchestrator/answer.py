"""The answer of a request whose parts all came back, and its receipt.

What an answer shares with others (lineage) was encoded before and is spliced as `msgspec.Raw`; so
are a classifier's predictions. Tensors are the runtime's bytes, not copied before the frame is
written.
"""

from itertools import chain
from typing import Any, cast

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from contracts.errors import ErrorBody, MeshError
from contracts.inference import InferenceResponse, Item, Mark, Tensor, Usage
from contracts.lineage import Lineage, Receipt
from contracts.stages import Timing
from services.orchestrator.batching import drop_rows
from services.orchestrator.combinations import Combined
from services.orchestrator.output_contract import check_predictions
from services.orchestrator.plan import ModelPlan
from services.orchestrator.request import Part, Work
from services.orchestrator.tokens import tokens_of_rows

_OK = Item(status="ok")
_NO_MARKS: list[Mark] = []


def statuses(work: Work) -> list[Item] | UnsetType:
    """Check every part's predictions (K5); the status of each row, if some rows failed.

    Raises OUTPUT_INVALID for an answer that breaks the model's contract, and the first row's error
    when no row is good.
    """
    plan, is_whole = work.plan, True
    for part in work.parts:
        failed = len(part.errors) if part.errors else 0
        is_whole = is_whole and not failed and not part.refused
        if plan.labels and part.good_rows:
            assert part.predictions is not None, "a classifier's batch has a list for each part"
            part.checked = check_predictions(
                part.predictions, part.good_rows - failed, plan, work.body.risk_level
            )
    if is_whole:
        return UNSET
    items = list(chain.from_iterable(_statuses(part) for part in work.parts))
    if not any(item is _OK for item in items):
        status = items[0].status
        assert isinstance(status, ErrorBody), "the status of a bad row is its error"
        raise MeshError.from_body(status)
    return items


def _statuses(part: Part) -> list[Item]:
    """Refused rows are counted in the request, failed ones among the good rows."""
    items = [_OK] * part.rows
    for refused in part.refused:
        items[refused.row] = Item(status=refused.error)
    if part.errors:
        good = [row for row, item in enumerate(items) if item is _OK]
        for row, error in part.errors.items():
            items[good[row]] = Item(status=error)
    return items


def answer_of(
    work: Work, combined: Combined, times: Timing, items: list[Item] | UnsetType
) -> InferenceResponse:
    """The answer; `items` is what `statuses` returned."""
    plan = work.plan
    rows, tokens = work.rows, work.tokens
    if items is not UNSET:
        rows = sum(item is _OK for item in items)
        if tokens:
            tokens = tokens_of_rows(work, [item is _OK for item in items])
    answer = InferenceResponse(
        id=work.request_id,
        trace_id=work.call.trace_id,
        model_name=plan.name,
        model_version=plan.version,
        policy_version=work.table.version,
        variant=work.variant,
        degraded=work.variant == "fallback",
        marks=_NO_MARKS,
        outputs=_outputs_of(work, rows),
        usage=Usage(rows=rows, tokens_in=tokens, tokens_out=0),
        timing_us=times,
        lineage=cast(Lineage, combined.lineage),
    )
    if plan.view is None and not plan.labels and items is UNSET:
        return answer
    freshness_s, frozen = _features_of(work)
    return replace(
        answer,
        predictions=_predictions_of(work) if plan.labels else UNSET,
        marks=_marks(freshness_s, frozen, plan),
        freshness_s=freshness_s,
        frozen=frozen or UNSET,
        items=items,
    )


def receipt_of(
    work: Work, answer: InferenceResponse, snapshot: str, at_us: int, stages_us: list[int]
) -> Receipt:
    """The receipt of an answer given at `at_us` (wall clock). Its first fields go by position:
    Python builds a dictionary for a call with more than fifteen names."""
    body, timing = work.body, answer.timing_us
    return Receipt(
        body.tenant_id,
        work.request_id,
        answer.trace_id,
        at_us,
        "ok",
        answer.model_name,
        answer.model_version,
        answer.policy_version,
        snapshot,
        variant=work.variant,
        degraded=answer.degraded,
        marks=cast(list[str], answer.marks),
        risk_level=body.risk_level,
        peer_uid=work.call.peer.uid,
        rows=answer.usage.rows,
        tokens_in=answer.usage.tokens_in,
        tokens_out=0,
        compute_us=_compute_us(work),
        total_us=timing.total,
        stages_us=stages_us,
        hops=[(hop.instance, hop.received, hop.sent) for hop in timing.hops],
        entity="" if body.entity is UNSET else body.entity,
    )


def _outputs_of(work: Work, rows: int) -> list[Tensor]:
    """The wanted outputs: the parts' rows joined, failed ones left out."""
    plans, parts = work.plan.outputs, work.parts
    tensors = []
    for index in work.outputs:
        plan = plans[index]
        data = _rows_of(parts[0], index, plan.row_bytes)
        if len(parts) > 1:
            pieces = [_rows_of(part, index, plan.row_bytes) for part in parts]
            data = memoryview(b"".join(pieces))
        shape = [rows, *plan.row_shape]
        tensors.append(Tensor(name=plan.name, datatype=plan.datatype, shape=shape, data=data))
    return tensors


def _rows_of(part: Part, index: int, row_bytes: int) -> memoryview:
    """The part's rows of one output, failed ones left out; not copied if there are none."""
    batch = part.batch
    if batch is None or batch.executed is None:
        return memoryview(b"")  # none of its rows was good
    joined = cast(memoryview, batch.executed.outputs[index].data)
    start = part.batch_row * row_bytes
    data = joined[start : start + part.good_rows * row_bytes]
    return data if part.errors is None else memoryview(drop_rows(data, row_bytes, part.errors))


def _predictions_of(work: Work) -> Any:
    """Of a single part what the runtime encoded, which was checked; else the parts' joined."""
    if len(work.parts) == 1:
        return work.parts[0].predictions
    return list(chain.from_iterable(part.checked for part in work.parts))


def _features_of(work: Work) -> tuple[float | UnsetType, list[str]]:
    """The worst freshness of the parts, and the frozen features."""
    known = [part.freshness_s for part in work.parts if part.freshness_s is not None]
    frozen = {name for part in work.parts if part.features for name in part.features.frozen}
    return (max(known) if known else UNSET), sorted(frozen)


def _marks(freshness_s: float | UnsetType, frozen: list[str], plan: ModelPlan) -> list[Mark]:
    marks: list[Mark] = ["frozen"] if frozen else []
    if freshness_s is not UNSET and freshness_s > plan.freshness_s:
        marks.append("stale")
    return marks


def _compute_us(work: Work) -> int:
    """The request's share of its batches' forwards, by rows, of a token model by tokens."""
    compute_us = 0
    for part in work.parts:
        batch = part.batch
        if batch is not None and batch.executed is not None:
            if part.tokens:
                compute_us += batch.executed.forward_us * part.tokens // batch.tokens_real
            else:
                compute_us += batch.executed.forward_us * part.good_rows // batch.rows
    return compute_us
