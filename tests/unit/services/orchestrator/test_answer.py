"""Answers, their checks, their lineage and their receipts."""

from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from contracts.errors import ErrorBody, MeshError
from contracts.features import FeatureLineage, RefusedRow
from contracts.inference import InferenceResponse, Prediction
from contracts.lineage import (
    NOTHING,
    Combination,
    Lineage,
    Receipt,
    data_digest,
    snapshot_digest,
)
from contracts.stages import STAGES
from services.orchestrator.answer import answer_of, receipt_of, statuses
from services.orchestrator.combinations import Combinations, combinations_max
from services.orchestrator.execution import Batch
from services.orchestrator.micro_batch import FeatureAnswer
from services.orchestrator.output_contract import check_outputs
from services.orchestrator.plan import ModelPlan
from services.orchestrator.request import Part, Work
from services.orchestrator.stamps import timing
from tests.unit.services.orchestrator.making import (
    EMPTY_TABLE,
    classifier,
    contract,
    digest,
    executed,
    floats,
    part_for,
    plan_for,
    request,
    rows_request,
    work_for,
)

TINY = plan_for()
DELAY = plan_for(classifier())
INFRA = digest(5)
LINEAGE = FeatureLineage(data=digest(2), feature_code=digest(3), certificate=digest(4))
STRICT = msgspec.msgpack.Decoder(InferenceResponse)


def strictly(answer: InferenceResponse) -> InferenceResponse:
    """Decode what is sent, refusing fields that the contract does not have."""
    encoded = msgspec.msgpack.encode(answer)
    names = msgspec.msgpack.decode(encoded).keys()
    assert names <= set(InferenceResponse.__struct_fields__)
    return STRICT.decode(encoded)


def error_body(name: str = "FEATURE_INVALID") -> ErrorBody:
    """Some error."""
    return MeshError(name, "hour is 25, range is [0, 23]").body("0" * 32)


def prediction(label: str = "late", late: float = 0.75, **changes: Any) -> Prediction:
    """A prediction that keeps the contract, unless changed."""
    fields: dict[str, Any] = {
        "label": label,
        "confidence_score": late,
        "probabilities": {"late": late, "on_time": 1 - late},
        "action": "warn",
    }
    return Prediction(**(fields | changes))


def run(plan: ModelPlan, parts: list[Part], **answer: Any) -> None:
    """Execute the parts in one batch of the plan."""
    batch = Batch(plan, parts, 100.1)
    batch.sent_s, batch.answered_s, batch.instance = 100.2, 100.3, "model_runtime.0-x"
    batch.deliver(executed(batch.rows, **answer))


def concluded(work: Work, features: FeatureLineage | None = None) -> tuple[Any, Receipt]:
    """The answer as a client decodes it, and its receipt."""
    items = statuses(work)
    combined = Combinations(INFRA).of(work.plan, work.table, features)
    last = next(part for part in work.parts if part.batch is not None)
    stages_us, times = timing(work, last, "orchestrator.0-x", 100.4)
    answer = answer_of(work, combined, times, items)
    receipt = receipt_of(work, answer, combined.snapshot, 1_000, stages_us)
    return strictly(answer), receipt


def delay_work(rows: int, *predictions: Prediction, refused: tuple[int, ...] = ()) -> Work:
    """A request for the classifier, executed; `refused` rows never reached the runtime."""
    work = work_for(DELAY, rows_request(rows, risk_level=1, entity="N1"))
    part = Part(work, 0, rows, 10)
    part.refused = [RefusedRow(row=row, error=error_body()) for row in refused]
    part.good_rows = rows - len(refused)
    part.features = FeatureAnswer("data_fabric.0-x", 0, 0, LINEAGE, [])
    part.freshness_s = 30.0
    work.parts, work.rows = [part], rows
    good = part.good_rows
    probabilities = memoryview(floats(*range(2 * good)))
    tensor = msgspec.structs.replace(
        executed(1).outputs[0], name="p", shape=[good, 2], data=probabilities
    )
    raw = Raw(msgspec.msgpack.encode(list(predictions)))
    run(DELAY, [part], outputs=[tensor], predictions=[raw])
    return work


def test_the_answer_of_a_tensor_model_decodes_strictly() -> None:
    """Every field of the public face, from spliced parts."""
    part = part_for(TINY, 2, id="mine", tenant_id="t")
    run(TINY, [part])
    answer, receipt = concluded(part.work)
    assert (answer.id, answer.model_version, answer.policy_version) == ("mine", "1", 1)
    assert (answer.variant, answer.degraded, answer.marks) == ("default", False, [])
    assert bytes(answer.outputs[0].data) == floats(0, 1)
    assert answer.outputs[0].shape == [2, 1]
    assert answer.usage.rows == 2
    assert answer.timing_us.total == pytest.approx(400_000, abs=5)
    instances = [hop.instance for hop in answer.timing_us.hops]
    assert instances == ["orchestrator.0-x", "model_runtime.0-x"]
    assert answer.lineage.weights == TINY.weights
    assert answer.lineage.data is UNSET
    assert answer.predictions is UNSET
    assert answer.items is UNSET
    assert (receipt.status, receipt.id, receipt.tenant_id, receipt.rows) == ("ok", "mine", "t", 2)
    assert receipt.snapshot == answer.lineage.snapshot
    assert receipt.compute_us == 100
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(receipt), type=Receipt) == receipt


def test_the_answer_of_a_classifier_decodes_strictly() -> None:
    """Predictions are spliced, freshness and lineage come from the fabric."""
    work = delay_work(2, prediction(), prediction("on_time", 0.25))
    answer, receipt = concluded(work, LINEAGE)
    assert [row.label for row in answer.predictions] == ["late", "on_time"]
    assert answer.freshness_s == 30.0
    assert answer.marks == []
    assert answer.lineage.data == LINEAGE.data
    assert answer.lineage.certificate == LINEAGE.certificate
    assert receipt.entity == "N1"


def test_without_an_id_the_trace_id_is_the_id() -> None:
    """The default of the public face."""
    part = part_for(TINY)
    run(TINY, [part])
    answer, receipt = concluded(part.work)
    assert answer.id == answer.trace_id == receipt.id


def test_parts_of_a_long_request_come_together_in_order() -> None:
    """Three parts in three batches, the last one first."""
    work = work_for(TINY, request(5))
    parts = [Part(work, start, rows, 8) for start, rows in ((0, 2), (2, 2), (4, 1))]
    work.parts, work.rows = parts, 5
    for part in reversed(parts):
        part.tensors = [floats(*range(2 * part.rows))]
        data = memoryview(floats(*range(part.start, part.start + part.rows)))
        shape = [part.rows, 1]
        tensor = msgspec.structs.replace(executed(1).outputs[0], data=data, shape=shape)
        run(TINY, [part], outputs=[tensor])
    answer, receipt = concluded(work)
    assert bytes(answer.outputs[0].data) == floats(0, 1, 2, 3, 4)
    assert answer.outputs[0].shape == [5, 1]
    assert receipt.compute_us == 300


def test_refused_and_failed_rows_have_their_status_and_the_good_ones_are_answered() -> None:
    """Rows 0 … 4: the view refuses 1, the model fails on the second good one, which is 2."""
    work = work_for(DELAY, rows_request(5, risk_level=1))
    part = Part(work, 0, 5, 10)
    part.refused = [RefusedRow(row=1, error=error_body())]
    part.good_rows = 4
    work.parts, work.rows = [part], 5
    tensor = msgspec.structs.replace(
        executed(1).outputs[0], name="p", shape=[4, 2], data=memoryview(floats(*range(8)))
    )
    raw = Raw(msgspec.msgpack.encode([prediction() for _ in range(3)]))
    run(
        DELAY,
        [part],
        outputs=[tensor],
        predictions=[raw],
        errors={1: error_body("FORWARD_FAILED")},
    )
    answer, receipt = concluded(work, LINEAGE)
    names = [item.status if item.status == "ok" else item.status.name for item in answer.items]
    assert names == ["ok", "FEATURE_INVALID", "FORWARD_FAILED", "ok", "ok"]
    assert bytes(answer.outputs[0].data) == floats(0, 1, 4, 5, 6, 7)
    assert answer.outputs[0].shape == [3, 2]
    assert len(answer.predictions) == answer.usage.rows == receipt.rows == 3


def test_when_no_row_is_good_the_request_fails_with_the_first_row_s_error() -> None:
    """All refused, without any batch."""
    work = work_for(DELAY, rows_request(2))
    part = Part(work, 0, 2, 10)
    part.refused = [RefusedRow(row=row, error=error_body()) for row in (0, 1)]
    part.good_rows = 0
    work.parts = [part]
    with pytest.raises(MeshError) as caught:
        statuses(work)
    assert caught.value.name == "FEATURE_INVALID"


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        ({"label": "early"}, "labels are"),
        ({"probabilities": {"late": 1.0}}, "labels are"),
        ({"probabilities": {"late": 0.5, "on_time": 0.6}}, "sum to"),
        ({"probabilities": {"late": 0.5, "on_time": float("nan")}}, "predictions"),
        ({"confidence_score": 1.01}, "predictions"),
        ({"confidence_score": -0.01}, "predictions"),
        ({"action": "panic"}, "no rule gives panic at risk level 1"),
        ({"action": UNSET}, "no action"),
    ],
)
def test_a_prediction_that_breaks_the_contract_never_leaves(
    broken: dict[str, Any], word: str
) -> None:
    """K5: labels, probabilities, confidence, action."""
    with pytest.raises(MeshError, match=word) as caught:
        statuses(delay_work(1, prediction(**broken)))
    assert caught.value.name == "OUTPUT_INVALID"


def test_as_many_predictions_as_good_rows() -> None:
    """One too few is caught, and what is no list of predictions."""
    with pytest.raises(MeshError, match="1 predictions for 2 rows"):
        statuses(delay_work(2, prediction()))
    work = delay_work(1, prediction())
    work.parts[0].predictions = Raw(b"\x81")
    with pytest.raises(MeshError, match="predictions"):
        statuses(work)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"name": "z"}, "received z"),
        ({"datatype": "FP64"}, "received y FP64"),
        ({"shape": [2, 1]}, "[2, 1]"),
        ({"data": memoryview(b"12345")}, "with 5 bytes"),
    ],
)
def test_an_output_that_breaks_the_contract_fails_its_batch(
    changes: dict[str, Any], word: str
) -> None:
    """Name, datatype, shape, size."""
    tensor = msgspec.structs.replace(executed(1).outputs[0], **changes)
    with pytest.raises(MeshError) as caught:
        check_outputs(executed(1, outputs=[tensor]), TINY, 1, 1)
    assert caught.value.name == "OUTPUT_INVALID"
    assert word in caught.value.message


@pytest.mark.parametrize(
    "answer", [{"outputs": []}, {"predictions": [Raw(b"\x90")]}, {"errors": {1: error_body()}}]
)
def test_an_answer_for_other_rows_or_requests_fails_its_batch(answer: dict[str, Any]) -> None:
    """No outputs, predictions of a tensor model, an error for a row that is not there."""
    with pytest.raises(MeshError, match="OUTPUT_INVALID"):
        check_outputs(executed(1, **answer), TINY, 1, 1)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.data())
def test_answers_keep_to_their_callers(sizes: list[int], draw: st.DataObject) -> None:
    """Whatever requests a batch joins and whatever rows fail: each gets its own rows' outputs."""
    parts = [part_for(TINY, rows) for rows in sizes]
    total = sum(sizes)
    failed = draw.draw(st.sets(st.integers(0, total - 1), max_size=total))
    run(TINY, parts, errors={row: error_body("FORWARD_FAILED") for row in failed})
    start = 0
    for part in parts:
        rows = range(start, start + part.rows)
        start += part.rows
        good = [row for row in rows if row not in failed]
        if not good:
            with pytest.raises(MeshError, match="FORWARD_FAILED"):
                statuses(part.work)
            continue
        answer, _ = concluded(part.work)
        assert bytes(answer.outputs[0].data) == floats(*good)
        is_whole = len(good) == part.rows
        assert (answer.items is UNSET) is is_whole


def test_only_wanted_outputs_are_answered() -> None:
    """`outputs` selects."""
    part = part_for(TINY)
    part.work.outputs = []
    run(TINY, [part])
    assert concluded(part.work)[0].outputs == []


@pytest.mark.parametrize(
    ("freshness_s", "frozen", "marks"),
    [(60.0, [], []), (60.1, [], ["stale"]), (61.0, ["hour"], ["frozen", "stale"])],
)
def test_marks_say_what_is_old_or_frozen(
    freshness_s: float, frozen: list[str], marks: list[Literal["stale", "frozen"]]
) -> None:
    """At the view's freshness and above it; frozen features are named."""
    work = delay_work(1, prediction())
    part = work.parts[0]
    part.freshness_s = freshness_s
    part.features = FeatureAnswer("f", 0, 0, LINEAGE, frozen)
    answer, receipt = concluded(work, LINEAGE)
    assert answer.marks == receipt.marks == marks
    assert answer.frozen == (frozen or UNSET)


def test_a_fallback_is_marked_degraded() -> None:
    """In the answer and in the receipt."""
    part = part_for(TINY)
    part.work.variant = "fallback"
    run(TINY, [part])
    answer, receipt = concluded(part.work)
    assert answer.degraded
    assert receipt.degraded
    assert answer.variant == receipt.variant == "fallback"


def test_a_combination_accounts_for_data_model_infrastructure_and_policy() -> None:
    """The snapshot is the digest of exactly these four; without a view the data is nothing."""
    combined = Combinations(INFRA).of(DELAY, EMPTY_TABLE, LINEAGE)
    combination = msgspec.msgpack.decode(combined.combination, type=Combination)
    assert combination.version.data == data_digest(LINEAGE.data, LINEAGE.feature_code)
    assert combination.version.model == DELAY.digest
    assert combination.version.infra == combination.lineage.infra == INFRA
    assert combination.version.policy == EMPTY_TABLE.digest
    assert combined.snapshot == snapshot_digest(combination.version)
    assert (combination.view, combination.view_version) == ("departure", "1")
    lineage = msgspec.msgpack.decode(combined.lineage, type=Lineage)
    assert lineage == combination.lineage
    without = Combinations(INFRA).of(TINY, EMPTY_TABLE, None)
    assert msgspec.msgpack.decode(without.combination, type=Combination).version.data == NOTHING


def test_combinations_are_encoded_once_and_bounded() -> None:
    """The same object until the cache is full."""
    combinations = Combinations(INFRA)
    first = combinations.of(TINY, EMPTY_TABLE, None)
    assert combinations.of(TINY, EMPTY_TABLE, None) is first
    for number in range(combinations_max + 1):
        lineage = FeatureLineage(data=digest(number), feature_code=digest(3))
        combinations.of(DELAY, EMPTY_TABLE, lineage)
    assert len(combinations._known) <= combinations_max


@given(st.lists(st.floats(0.0, 0.01), min_size=5, max_size=5), st.integers(0, 3_000))
def test_stages_sum_to_the_whole(steps: list[float], share_us: int) -> None:
    """Every microsecond from the frame to the reply is in exactly one stage."""
    queued_s, assembling_s, travelling_s, replying_s, features_s = steps
    part_us = share_us // 4
    part = part_for(TINY)
    received_s = part.work.received_s
    batch = Batch(TINY, [part], received_s + queued_s)
    batch.sent_s = batch.taken_s + assembling_s
    batch.answered_s = batch.sent_s + travelling_s + share_us / 1e6
    batch.deliver(
        executed(
            1, wait_us=part_us, tokenize_us=part_us, forward_us=part_us, postprocess_us=part_us
        )
    )
    part.features_s = min(features_s, queued_s)
    replied_s = batch.answered_s + replying_s
    stages_us, times = timing(part.work, part, "orchestrator.0-x", replied_s)
    assert len(stages_us) == len(STAGES)
    assert all(stage_us >= 0 for stage_us in stages_us)
    assert times.total == sum(stages_us)
    assert abs(times.total - (replied_s - received_s) * 1e6) <= 5.0


def test_a_batch_is_one_frame_with_the_inputs_joined_in_order() -> None:
    """Rows, risks and remaining time of each request stand in the same order."""
    parts = [part_for(TINY, rows, risk_level=risk) for rows, risk in ((1, 1), (3, 2))]
    batch = Batch(TINY, parts, 100.5)
    body = batch.encode(101.0)
    assert (body.model_name, body.model_version) == ("tiny", "1")
    assert (body.rows, body.risk_levels) == ([1, 3], [1, 2])
    assert body.deadlines_us == [4_000_000, 4_000_000]
    assert body.tensors[0].shape == [4, 2]
    assert bytes(body.tensors[0].data) == floats(0, 1, 0, 1, 2, 3, 4, 5)  # type: ignore[arg-type]
    assert body.blocks == []


def test_a_batch_of_a_view_splices_the_blocks_unopened() -> None:
    """One block a request."""
    work = work_for(DELAY, rows_request(1))
    part = Part(work, 0, 1, 10)
    part.block = Raw(b"\xa3abc")
    work.parts = [part]
    body = Batch(DELAY, [part], 100.5).encode(101.0)
    assert body.blocks == [part.block]
    assert body.tensors == []


def test_an_input_of_one_request_is_not_copied() -> None:
    """A single large request goes through as it came."""
    part = part_for(TINY, 2)
    body = Batch(TINY, [part], 100.5).encode(101.0)
    assert body.tensors[0].data.obj is part.tensors[0]  # type: ignore[union-attr]


def test_models_with_inputs_and_without_rows_of_fixed_size() -> None:
    """A plan knows the bytes of a row of every side."""
    assert TINY.input_row_bytes == 8
    assert TINY.form == "inputs"
    assert DELAY.form == "rows"
    assert DELAY.freshness_s == 60.0
    assert plan_for(contract()).contract == TINY.contract
