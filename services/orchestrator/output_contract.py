"""K5 on every reply: a runtime's answer against the model's contract.

What breaks it never leaves.
"""

import msgspec
from msgspec import Raw

from contracts.errors import MeshError
from contracts.execution import Executed
from contracts.inference import Prediction
from contracts.types import UNSET
from services.orchestrator.plan import ModelPlan

probability_tolerance = 1e-6
"""How far a row's probabilities may be from 1 in sum."""

_decode_predictions = msgspec.msgpack.Decoder(list[Prediction]).decode


def check_outputs(executed: Executed, plan: ModelPlan, requests: int, rows: int) -> None:
    """A batch's answer as a whole: every tensor's name, datatype, shape and size, a list of
    predictions for each request of a classifier, errors for rows that exist.

    Raises OUTPUT_INVALID naming what is broken.
    """
    if len(executed.outputs) != len(plan.outputs):
        raise _invalid(f"{plan.name} has {len(plan.outputs)} outputs, not {len(executed.outputs)}")
    for output, tensor in zip(executed.outputs, plan.outputs, strict=True):
        if (
            output.name != tensor.name
            or output.datatype != tensor.datatype
            or output.shape != [rows, *tensor.row_shape]
            or len(output.data) != rows * tensor.row_bytes
        ):
            raise _invalid(
                f"output {tensor.name} is {tensor.datatype} {[rows, *tensor.row_shape]}, received"
                f" {output.name} {output.datatype} {output.shape} with {len(output.data)} bytes"
            )
    expected = requests if plan.labels else 0
    if len(executed.predictions) != expected:
        raise _invalid(f"{len(executed.predictions)} lists of predictions, not {expected}")
    for row in executed.errors:
        if not 0 <= row < rows:
            raise _invalid(f"an error for row {row} of {rows}")


def check_predictions(raw: Raw, rows: int, plan: ModelPlan, risk_level: int) -> list[Prediction]:
    """A part's predictions: one for each of `rows` rows, confidence and probabilities in [0, 1]
    that sum to 1, exactly the contract's labels, an action that a rule gives at this risk level.

    Raises OUTPUT_INVALID naming what is broken.
    """
    try:
        predictions = _decode_predictions(raw)
    except msgspec.MsgspecError as error:
        raise _invalid(f"predictions: {error}") from error
    if len(predictions) != rows:
        raise _invalid(f"{len(predictions)} predictions for {rows} rows")
    for prediction in predictions:
        probabilities = prediction.probabilities
        if probabilities.keys() != plan.labels or prediction.label not in plan.labels:
            raise _invalid(
                f"the labels are {sorted(plan.labels)}, received {sorted(probabilities)}"
            )
        total = sum(probabilities.values())
        if not abs(total - 1.0) <= probability_tolerance:
            raise _invalid(f"probabilities sum to {total}")
        given = None if prediction.action is UNSET else prediction.action
        if given is None and plan.actions:
            raise _invalid("no action, but the contract's rules are total")
        if given is not None and (risk_level, given) not in plan.actions:
            raise _invalid(f"no rule gives {given} at risk level {risk_level}")
    return predictions


def _invalid(message: str) -> MeshError:
    return MeshError("OUTPUT_INVALID", message)
