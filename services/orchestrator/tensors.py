"""Input tensors against a model's contract: names, datatype, shape, and exactly the bytes that
these announce."""

from collections.abc import Sequence

from contracts.errors import MeshError
from contracts.inference import DATATYPE_BYTES, Tensor
from services.orchestrator.numbers import pack_numbers
from services.orchestrator.plan import TensorPlan
from services.orchestrator.request import Bytes


def check_tensors(given: Sequence[Tensor], plans: Sequence[TensorPlan]) -> tuple[int, list[Bytes]]:
    """The row count (≥ 1, the same for all), and each input's bytes in the contract's order.

    Raises INVALID_REQUEST naming the input, what the contract says and what was received.
    """
    if len(given) != len(plans):
        raise _invalid(f"the model takes {len(plans)} inputs, received {len(given)}")
    shape = given[0].shape
    rows = shape[0] if shape else 0
    if rows < 1:
        raise _invalid(f"input {given[0].name[:64]} has no rows: its shape is {shape}")
    found: list[Bytes] = []
    for index, plan in enumerate(plans):
        tensor = given[index]
        if tensor.name != plan.name:
            tensor = _named(plan.name, given)
        shape = tensor.shape
        if tensor.datatype != plan.datatype or shape != [rows, *plan.row_shape]:
            raise _invalid(
                f"input {plan.name} is {plan.datatype} {[rows, *plan.row_shape]},"
                f" received {tensor.datatype} {shape}"
            )
        found.append(_bytes_of(tensor, plan, rows))
    return rows, found


def _named(name: str, given: Sequence[Tensor]) -> Tensor:
    for tensor in given:
        if tensor.name == name:
            return tensor
    received = ", ".join(tensor.name[:64] for tensor in given[:8])
    raise _invalid(f"input {name} is missing, received {received}")


def _bytes_of(tensor: Tensor, plan: TensorPlan, rows: int) -> Bytes:
    data = tensor.data
    expected = rows * plan.row_bytes
    if isinstance(data, list):
        count = expected // DATATYPE_BYTES[plan.datatype]
        if len(data) != count:
            raise _invalid(f"input {plan.name} takes {count} numbers, received {len(data)}")
        try:
            return pack_numbers(data, plan.datatype)
        except ValueError as error:
            raise _invalid(f"input {plan.name}: {error}") from error
    if len(data) != expected:
        raise _invalid(f"input {plan.name} takes {expected} bytes, received {len(data)}")
    return data


def _invalid(message: str) -> MeshError:
    return MeshError("INVALID_REQUEST", message)
