"""Output checks and actions: what breaks the contract fails, and only that."""

import itertools

import msgspec
import numpy as np
import pytest

from contracts.errors import MeshError
from contracts.execution import Execute
from contracts.inference import Prediction
from contracts.pack import Action, ModelContract, TensorContract
from contracts.types import UNSET
from services.model_runtime.mapping import Array
from services.model_runtime.postprocess import Postprocess
from services.model_runtime.probabilities import are_probabilities, softmax

LABELS = ["late", "on_time"]
RULES = [
    Action(risk_level=level, label=label, probability_min=minimum, action=action)
    for level, label, minimum, action in [
        (1, "late", 0.0, "proceed"), (1, "on_time", 0.0, "relax"),
        (1, "late", 0.25, "notify"), (1, "late", 0.5, "rebook"),
        (2, "late", 0.0, "proceed"), (2, "on_time", 0.0, "proceed"), (2, "late", 0.6, "notify"),
        (3, "late", 0.0, "proceed"), (3, "on_time", 0.0, "proceed"),
    ]
]  # fmt: skip


def contract(actions: list[Action] | None = None) -> ModelContract:
    """A classifier of two labels."""
    return ModelContract(
        name="delay",
        task="classifier",
        inputs=[TensorContract(name="x", datatype="FP32", shape=[-1, 2])],
        outputs=[TensorContract(name="probabilities", datatype="FP32", shape=[-1, 2])],
        labels=LABELS,
        actions=RULES if actions is None else actions,
    )


def tensor_contract() -> ModelContract:
    """A model of plain tensors."""
    return ModelContract(
        name="tiny",
        task="tensor",
        inputs=[TensorContract(name="x", datatype="FP32", shape=[-1, 2])],
        outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, 2])],
    )


def batch(rows: list[int], levels: list[int] | None = None) -> Execute:
    """A batch of requests with these row counts."""
    return Execute(
        model_name="delay",
        model_version="7",
        rows=rows,
        risk_levels=levels or [2] * len(rows),
        deadlines_us=[1_000_000] * len(rows),
    )


def logits(probabilities: Array) -> Array:
    """Logits with these softmax probabilities, as FP32."""
    return np.log(probabilities).astype(np.float32)


def decode(raw: msgspec.Raw) -> list[Prediction]:
    """Predictions as the client gets them."""
    return msgspec.msgpack.decode(raw, type=list[Prediction])


def test_softmax_equals_its_definition_and_survives_large_logits() -> None:
    """exp(x) / Σ exp(x), without overflow."""
    x = np.array([[1.0, 2.0, 0.5], [1e4, -1e4, 0.0]], dtype=np.float32)
    expected = np.exp(x[0].astype(float)) / np.exp(x[0].astype(float)).sum()
    np.testing.assert_allclose(softmax(x)[0], expected, rtol=1e-12)
    np.testing.assert_allclose(softmax(x)[1], [1.0, 0.0, 0.0])


def test_probabilities_are_judged_row_by_row() -> None:
    """Sum within 1e-6 of 1, each in [0, 1]; NaN never passes."""
    rows = np.array([[0.5, 0.5], [0.5, 0.5 + 5e-7], [0.5, 0.5 + 2e-6], [1.5, -0.5], [np.nan, 1.0]])
    assert are_probabilities(rows).tolist() == [True, True, False, False, False]


def test_a_prediction_names_label_confidence_probabilities_and_action() -> None:
    """Requests get their own rows, in order."""
    late = np.array([0.9, 0.1, 0.3])
    outputs = [logits(np.stack([late, 1 - late], axis=1))]
    checked = Postprocess(contract()).check(outputs, batch([2, 1], [1, 2]), 3, None)
    first, second = (decode(raw) for raw in checked.predictions)
    assert [p.label for p in first] == ["late", "on_time"]
    assert [p.action for p in first] == ["rebook", "relax"]
    assert [p.action for p in second] == ["proceed"]
    assert first[0].confidence_score == pytest.approx(0.9, abs=1e-6)
    assert second[0].probabilities == pytest.approx({"late": 0.3, "on_time": 0.7}, abs=1e-6)
    (output,) = checked.outputs
    assert output.shape == [3, 2]
    np.testing.assert_allclose(np.frombuffer(output.data, "<f4")[::2], late, atol=1e-6)
    assert checked.failed == {}


def test_a_row_that_is_not_finite_fails_alone() -> None:
    """NaN and infinite logits: OUTPUT_INVALID for that row, zeros in its place, no prediction."""
    outputs = [np.array([[0, 0], [np.nan, 0], [np.inf, np.inf], [0, 1]], dtype=np.float32)]
    checked = Postprocess(contract()).check(outputs, batch([1, 2, 1]), 4, None)
    assert sorted(checked.failed) == [1, 2]
    assert checked.failed[1].name == "OUTPUT_INVALID"
    assert "delay version 7: probabilities is [nan nan]" in checked.failed[1].message
    assert [len(decode(raw)) for raw in checked.predictions] == [1, 0, 1]
    assert np.frombuffer(checked.outputs[0].data, "<f4").reshape(4, 2)[1:3].tolist() == [[0, 0]] * 2


def test_a_tensor_row_that_is_not_finite_fails_alone() -> None:
    """Other tasks have no probabilities, but their numbers are finite too."""
    outputs = [np.array([[1, 2], [np.inf, 0], [3, 4]], dtype=np.float32)]
    checked = Postprocess(tensor_contract()).check(outputs, batch([3]), 3, None)
    assert list(checked.failed) == [1]
    assert checked.predictions == []
    assert np.frombuffer(checked.outputs[0].data, "<f4").tolist() == [1, 2, 0, 0, 3, 4]


def test_finite_numbers_whose_sum_overflows_pass() -> None:
    """The quick check may doubt; the verdict is row by row."""
    outputs = [np.full((2, 2), 3e38, dtype=np.float32)]
    checked = Postprocess(tensor_contract()).check(outputs, batch([2]), 2, None)
    assert checked.failed == {}


def test_a_row_that_had_failed_before_is_left_out_without_a_second_error() -> None:
    """Expired rows count as failed: zeros, no prediction."""
    outputs = [np.zeros((3, 2), dtype=np.float32)]
    live = np.array([True, False, True])
    checked = Postprocess(contract()).check(outputs, batch([1, 1, 1]), 3, live)
    assert checked.failed == {}
    assert [len(decode(raw)) for raw in checked.predictions] == [1, 0, 1]


@pytest.mark.parametrize("shape", [(4, 2), (2, 2), (3, 3), (3,)])
def test_a_wrong_shape_fails_the_batch_and_names_both(shape: tuple[int, ...]) -> None:
    """Model, expected and received are in the message."""
    with pytest.raises(MeshError, match="delay version 7") as caught:
        Postprocess(contract()).check_shapes([np.zeros(shape, np.float32)], batch([3]), 3)
    assert caught.value.name == "OUTPUT_INVALID"
    assert "[[3, 2]]" in caught.value.message
    assert str([list(shape)]) in caught.value.message


def test_rules_are_total_and_follow_their_definition() -> None:
    """For every level and probability one action, the one that the contract's sentence names."""
    post = Postprocess(contract())
    grid = np.linspace(0, 1, 401)
    for level in (1, 2, 3):
        outputs = [np.stack([np.log(grid + 1e-30), np.log(1 - grid + 1e-30)], 1)]
        checked = post.check(outputs, batch([len(grid)], [level]), len(grid), None)
        for prediction in decode(checked.predictions[0]):
            fitting = [
                rule
                for rule in RULES
                if rule.risk_level == level
                and prediction.probabilities[rule.label] >= rule.probability_min
            ]
            expected = max(
                fitting, key=lambda r: (r.probability_min, prediction.probabilities[r.label])
            )
            assert prediction.action == expected.action


def test_actions_do_not_depend_on_the_order_of_rules() -> None:
    """Any order of the contract's rules gives the same actions."""
    late = np.array([0.05, 0.3, 0.55, 0.7])
    outputs = [logits(np.stack([late, 1 - late], axis=1))]
    seen = set()
    for order in itertools.permutations(RULES[:4]):
        checked = Postprocess(contract([*order, *RULES[4:]])).check(
            outputs, batch([4], [1]), 4, None
        )
        seen.add(tuple(str(p.action) for p in decode(checked.predictions[0])))
    assert seen == {("relax", "notify", "rebook", "rebook")}


def test_without_rules_there_is_no_action() -> None:
    """A contract may promise none."""
    checked = Postprocess(contract([])).check([np.zeros((1, 2), np.float32)], batch([1]), 1, None)
    assert decode(checked.predictions[0])[0].action is UNSET


def test_no_row_at_all_is_answered_with_zeros() -> None:
    """When everything failed before the forward, shapes and counts still hold."""
    checked = Postprocess(contract()).nothing(batch([2, 1]), 3)
    assert [len(decode(raw)) for raw in checked.predictions] == [0, 0]
    assert checked.outputs[0].shape == [3, 2]


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.bool_, object])
def test_another_datatype_than_promised_is_named(dtype: type) -> None:
    """Nothing is cut to size in silence; a classifier's scores become probabilities anyway."""
    with pytest.raises(MeshError, match="y of float32 is expected, received") as caught:
        Postprocess(tensor_contract()).check_shapes([np.zeros((3, 2), dtype)], batch([3]), 3)
    assert caught.value.name == "OUTPUT_INVALID"
    Postprocess(contract()).check_shapes([np.zeros((3, 2), np.float64)], batch([3]), 3)
