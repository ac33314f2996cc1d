"""What a request must satisfy before anything is kept for it: identity, form, the model's
contract. Refuses before allocating; reads no clock and touches no socket.
"""

from collections.abc import Sequence

from contracts.errors import MeshError
from contracts.inference import InferenceRequest
from contracts.types import UNSET
from services.orchestrator.batching import Window, cut, spans
from services.orchestrator.plan import ModelPlan
from services.orchestrator.request import Bytes, Part, Work
from services.orchestrator.rows import count_rows, divide_rows
from services.orchestrator.tensors import check_tensors
from shared.access import Peer


def check_identity(body: InferenceRequest, peer: Peer) -> None:
    """The peer may act for this tenant and claim this risk. Raises PERMISSION_DENIED."""
    if not peer.has_tenant(body.tenant_id):
        raise MeshError(
            "PERMISSION_DENIED", f"uid {peer.uid} may not act for tenant {body.tenant_id[:64]}"
        )
    if body.risk_level < peer.risk_level_min:
        raise MeshError(
            "PERMISSION_DENIED",
            f"uid {peer.uid} may claim risk level {peer.risk_level_min} or a higher number,"
            f" received {body.risk_level}",
        )


def check_form(body: InferenceRequest) -> str:
    """The one form that the request uses. Raises INVALID_REQUEST."""
    form = body.form()
    if body.explain:
        raise _invalid("explain: explanations do not exist yet")
    return form


def wanted_outputs(body: InferenceRequest, plan: ModelPlan) -> Sequence[int]:
    """Indices of the outputs that the request asks for; all without `outputs`.

    Raises INVALID_REQUEST naming one that the model does not give."""
    if body.outputs is UNSET:
        return range(len(plan.outputs))
    names = [output.name for output in plan.outputs]
    for name in body.outputs:
        if name not in names:
            raise _invalid(f"{plan.name} has the outputs {names}, received {name[:64]}")
    return [index for index, name in enumerate(names) if name in body.outputs]


class Input:
    """A request's input, checked: `rows` rows, `bytes` altogether."""

    __slots__ = ("bytes", "plan", "raw_rows", "rows", "tensors")

    def __init__(self, body: InferenceRequest, form: str, plan: ModelPlan) -> None:
        """Raises INVALID_REQUEST for a form that the model does not take, tensors that break its
        contract, or too many rows."""
        if form != plan.form:
            raise _invalid(f"{plan.name} takes {plan.form}, received {form}")
        if body.sampling is not UNSET:
            raise _invalid(f"{plan.name} is no language model: sampling is not for it")
        self.plan = plan
        self.raw_rows = body.rows
        self.tensors: list[Bytes] = []
        if body.inputs is not UNSET:
            self.rows, self.tensors = check_tensors(body.inputs, plan.inputs)
            self.bytes = self.rows * plan.input_row_bytes
        else:
            assert body.rows is not UNSET, "a plan takes inputs or rows"
            self.rows = count_rows(body.rows)
            self.bytes = memoryview(body.rows).nbytes
        if self.rows > plan.rows_max:
            raise _invalid(f"{plan.name} takes {plan.rows_max} rows, received {self.rows}")

    def parts(self, work: Work, window: Window) -> list[Part]:
        """The request's parts, each of at most a batch's rows."""
        size = max(self.bytes, self.rows * self.plan.answer_row_bytes)
        if self.rows == 1 or (self.rows <= window.rows_max and size <= window.bytes_max):
            part = Part(work, 0, self.rows, size)
            part.tensors, part.raw_rows = self.tensors, self.raw_rows
            return [part]
        row_bytes = size // self.rows
        divided = spans(self.rows, row_bytes, window)
        parts = [Part(work, start, rows, rows * row_bytes) for start, rows in divided]
        if self.raw_rows is not UNSET:
            for part, raw in zip(parts, divide_rows(self.raw_rows, divided), strict=True):
                part.raw_rows = raw
        for part in parts:
            part.tensors = [
                cut(data, part.start, part.rows, tensor.row_bytes)
                for data, tensor in zip(self.tensors, self.plan.inputs, strict=False)
            ]
        return parts


def _invalid(message: str) -> MeshError:
    return MeshError("INVALID_REQUEST", message)
