"""What a request must satisfy before anything is kept for it: identity, form, the model's
contract. Refuses before allocating; reads no clock and touches no socket.
"""

from collections.abc import Callable, Sequence
from typing import Final

from contracts.errors import MeshError
from contracts.inference import InferenceRequest
from contracts.types import UNSET
from services.orchestrator.batching import Window, cut, spans_of
from services.orchestrator.plan import ModelPlan
from services.orchestrator.request import Bytes, Part, Work
from services.orchestrator.rows import count_rows, divide_rows
from services.orchestrator.tensors import check_tensors
from services.orchestrator.tokens import pack_tokens
from shared.access import Peer

ONE: Final = [(0, 1)]
"""The only span of a request with one row."""
INPUTS: Final = "inputs"
_UNSET: Final = UNSET


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


def wanted_outputs(body: InferenceRequest, plan: ModelPlan) -> Sequence[int]:
    """Indices of the outputs that a request with `outputs` asks for.

    Raises INVALID_REQUEST naming one that the model does not give."""
    names = [output.name for output in plan.outputs]
    assert body.outputs is not UNSET, "without a choice it is every output"
    for name in body.outputs:
        if name not in names:
            raise _invalid(f"{plan.name} has the outputs {names}, received {name[:64]}")
    return [index for index, name in enumerate(names) if name in body.outputs]


def check_input(body: InferenceRequest, plan: ModelPlan) -> tuple[int, int, list[Bytes]]:
    """Rows, bytes, and the tensors' data in the contract's order (none for raw rows; of a token
    model see `pack_tokens`).

    Raises INVALID_REQUEST unless the request has exactly one form, and the one that the model
    takes, tensors or ids that keep its contract, and not too many rows; INPUT_TOO_LONG.
    """
    form = INPUTS if _is_inputs(body) else body.form()
    if body.explain:
        raise _invalid("explain: explanations do not exist yet")
    if form != plan.form:
        raise _invalid(f"{plan.name} takes {plan.form}, received {form}")
    if body.sampling is not _UNSET:
        raise _invalid(f"{plan.name} is no language model: sampling is not for it")
    tensors: list[Bytes] = []
    if body.inputs is not _UNSET:
        rows, tensors = check_tensors(body.inputs, plan.inputs)
        size = rows * plan.input_row_bytes
    elif plan.tokens is not None:
        rows, size, tensors = pack_tokens(body, plan)
    else:
        assert body.rows is not UNSET, "a plan takes inputs or rows"
        rows, size = count_rows(body.rows), memoryview(body.rows).nbytes
    if rows > plan.rows_max:
        raise _invalid(f"{plan.name} takes {plan.rows_max} rows, received {rows}")
    return rows, size, tensors


def _is_inputs(body: InferenceRequest) -> bool:
    """`body.form()` is "inputs", asked in a fifth of the time."""
    return (
        body.inputs is not _UNSET
        and body.rows is _UNSET
        and body.text is _UNSET
        and body.input_ids is _UNSET
        and body.messages is _UNSET
        and body.attention_mask is _UNSET
    )


def divide(work: Work, tensors: list[Bytes], window_of: Callable[[str], Window]) -> list[Part]:
    """The parts of a request whose `rows` and `bytes` are known, each of at most a batch's rows."""
    plan, rows, raw = work.plan, work.rows, work.body.rows
    size = max(work.bytes, rows * plan.answer_row_bytes)
    spans = ONE if rows == 1 else spans_of(rows, size // rows, window_of(plan.name))
    if len(spans) == 1:
        return [Part(work, 0, rows, size, tensors, raw)]
    parts = [Part(work, start, count, count * (size // rows)) for start, count in spans]
    if raw is not UNSET:
        for part, some in zip(parts, divide_rows(raw, spans), strict=True):
            part.raw_rows = some
    for part in parts:
        part.tensors = [
            cut(data, part.start, part.rows, tensor.row_bytes)
            for data, tensor in zip(tensors, plan.inputs, strict=False)
        ]
    return parts


def _invalid(message: str) -> MeshError:
    return MeshError("INVALID_REQUEST", message)
