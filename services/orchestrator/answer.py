"""The answer of a request whose parts all came back, and its receipt.

What an answer shares with others (lineage) was encoded before and is spliced as `msgspec.Raw`; so
are a classifier's predictions. Tensors are the runtime's bytes, not copied before the frame is
written.
"""

from itertools import chain
from typing import NamedTuple, cast

from msgspec import UNSET, UnsetType

from contracts.errors import ErrorBody, MeshError
from contracts.inference import InferenceResponse, Item, Mark, Prediction, Tensor, Usage
from contracts.lineage import Lineage, Receipt
from contracts.stages import Hop
from services.orchestrator.batching import keep_rows
from services.orchestrator.combinations import Combined
from services.orchestrator.execution import join
from services.orchestrator.output_contract import check_predictions
from services.orchestrator.request import Part, Work
from services.orchestrator.stamps import timing

_OK = Item(status="ok")


class Course(NamedTuple):
    """What the answer says about the way it took."""

    policy_version: int
    at_us: int
    stages_us: list[int]
    hops: list[Hop]


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


def conclude(
    work: Work, combined: Combined, course: Course, items: list[Item] | UnsetType
) -> tuple[InferenceResponse, Receipt]:
    """The answer and its receipt; `items` is what `statuses` returned."""
    body, plan, trace_id = work.body, work.plan, work.call.trace_id
    rows = work.rows if items is UNSET else sum(item is _OK for item in items)
    freshness_s, frozen, marks = _features_of(work) if plan.view is not None else _NO_VIEW
    degraded = work.variant == "fallback"
    answer = InferenceResponse(
        id=work.request_id,
        trace_id=trace_id,
        model_name=plan.name,
        model_version=plan.version,
        policy_version=course.policy_version,
        variant=work.variant,
        degraded=degraded,
        marks=marks,
        outputs=_outputs_of(work, rows),
        predictions=_predictions_of(work) if plan.labels else UNSET,
        usage=Usage(rows=rows, tokens_in=0, tokens_out=0),
        timing_us=timing(course.stages_us, course.hops),
        lineage=cast(Lineage, combined.lineage),
        freshness_s=freshness_s,
        frozen=frozen or UNSET,
        items=items,
    )
    receipt = Receipt(
        tenant_id=body.tenant_id,
        id=work.request_id,
        trace_id=trace_id,
        at_us=course.at_us,
        status="ok",
        model_name=plan.name,
        model_version=plan.version,
        policy_version=course.policy_version,
        snapshot=combined.snapshot,
        variant=work.variant,
        degraded=degraded,
        marks=list(marks),
        risk_level=body.risk_level,
        peer_uid=work.call.peer.uid,
        rows=rows,
        tokens_in=0,
        tokens_out=0,
        compute_us=sum(_compute_us(part) for part in work.parts),
        total_us=answer.timing_us.total,
        stages_us=course.stages_us,
        hops=[(hop.instance, hop.received, hop.sent) for hop in course.hops],
        entity="" if body.entity is UNSET else body.entity,
    )
    return answer, receipt


def _outputs_of(work: Work, rows: int) -> list[Tensor]:
    tensors = []
    for index in work.outputs:
        plan = work.plan.outputs[index]
        pieces = [
            keep_rows(part.outputs[index], plan.row_bytes, part.good_rows, part.errors)
            for part in work.parts
            if part.good_rows
        ]
        shape = [rows, *plan.row_shape]
        tensors.append(
            Tensor(name=plan.name, datatype=plan.datatype, shape=shape, data=join(pieces))
        )
    return tensors


def _predictions_of(work: Work) -> list[Prediction]:
    """Of a single part what the runtime encoded, which was checked; else the parts' joined."""
    if len(work.parts) == 1:
        return cast(list[Prediction], work.parts[0].predictions)
    return list(chain.from_iterable(part.checked for part in work.parts))


def _features_of(work: Work) -> tuple[float | UnsetType, list[str], list[Mark]]:
    """The worst freshness of the parts, the frozen features, and the marks these two give."""
    known = [part.freshness_s for part in work.parts if part.freshness_s is not None]
    freshness_s = max(known) if known else UNSET
    frozen = sorted({name for part in work.parts if part.features for name in part.features.frozen})
    marks: list[Mark] = ["frozen"] if frozen else []
    if freshness_s is not UNSET and freshness_s > work.plan.freshness_s:
        marks.append("stale")
    return freshness_s, frozen, marks


_NO_VIEW: tuple[UnsetType, list[str], list[Mark]] = (UNSET, [], [])


def _compute_us(part: Part) -> int:
    """The part's share of its batch's forward, by rows."""
    batch = part.batch
    if batch is None or batch.executed is None:
        return 0
    return batch.executed.forward_us * part.good_rows // batch.rows
