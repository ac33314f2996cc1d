"""Input tensors against a model's contract: names, datatype, shape, and exactly the bytes that
these announce."""

from collections.abc import Sequence

from contracts.errors import MeshError
from contracts.inference import DATATYPE_BYTES, Tensor
from services.orchestrator.numbers import Number, pack_numbers
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
        if tensor.datatype != plan.datatype or tensor.shape != [rows, *plan.row_shape]:
            raise _invalid(
                f"input {plan.name} is {plan.datatype} {[rows, *plan.row_shape]},"
                f" received {tensor.datatype} {tensor.shape}"
            )
        data = tensor.data
        if isinstance(data, list):
            found.append(_packed(data, plan, rows))
        elif len(data) == rows * plan.row_bytes:
            found.append(data)
        else:
            raise _invalid(
                f"input {plan.name} takes {rows * plan.row_bytes} bytes, received {len(data)}"
            )
    return rows, found


def _named(name: str, given: Sequence[Tensor]) -> Tensor:
    for tensor in given:
        if tensor.name == name:
            return tensor
    received = ", ".join(tensor.name[:64] for tensor in given[:8])
    raise _invalid(f"input {name} is missing, received {received}")


def _packed(numbers: list[Number], plan: TensorPlan, rows: int) -> bytes:
    count = rows * plan.row_bytes // DATATYPE_BYTES[plan.datatype]
    if len(numbers) != count:
        raise _invalid(f"input {plan.name} takes {count} numbers, received {len(numbers)}")
    try:
        return pack_numbers(numbers, plan.datatype)
    except ValueError as error:
        raise _invalid(f"input {plan.name}: {error}") from error


def _invalid(message: str) -> MeshError:
    return MeshError("INVALID_REQUEST", message)
