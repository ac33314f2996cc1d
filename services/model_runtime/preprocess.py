"""A batch's bytes → the arrays that the model's forward takes. Pure.

Raises MeshError INVALID_REQUEST when they are not what the model's contract says; the orchestrator
checked each request before, so this is about a disagreement inside the mesh.
"""

import math
import re
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from contracts.errors import MeshError
from contracts.execution import Execute
from contracts.features import Dtype, ViewHeader
from contracts.inference import Tensor
from contracts.pack import ColumnEncoder, ModelContract, TensorContract
from services.model_runtime.blocks import BlockReader
from services.model_runtime.encoding import Encoding
from services.model_runtime.mapping import NUMPY_TYPES, Array

_HEADER = re.compile(r"\A\s*/\*[ \t]*mortise\b(.*?)\*/", re.DOTALL)


class Preprocess(Protocol):
    """Makes a model's inputs from a batch."""

    def arrays(self, batch: Execute, rows: int) -> Sequence[Array]:
        """The forward's inputs, `rows` rows each."""
        ...

    def example(self) -> tuple[list[Tensor], list[msgspec.Raw]]:
        """Tensors and blocks of a batch of one row, to warm up with."""
        ...


class TensorPreprocess:
    """Tensors as they are: views into the frame."""

    def __init__(self, contract: ModelContract) -> None:
        self._inputs = [
            (tensor, np.dtype(NUMPY_TYPES[tensor.datatype])) for tensor in contract.inputs
        ]

    def arrays(self, batch: Execute, rows: int) -> Sequence[Array]:
        """One array an input of the contract."""
        if len(batch.tensors) != len(self._inputs):
            received = ", ".join(tensor.name for tensor in batch.tensors) or "none"
            raise _invalid(batch, f"{len(self._inputs)} tensors are expected, received {received}")
        return [
            _array(batch, tensor, contract, dtype, rows)
            for tensor, (contract, dtype) in zip(batch.tensors, self._inputs, strict=True)
        ]

    def example(self) -> tuple[list[Tensor], list[msgspec.Raw]]:
        """Zeros."""
        shapes = [(contract, dtype, [1, *contract.shape[1:]]) for contract, dtype in self._inputs]
        tensors = [
            Tensor(
                name=contract.name,
                datatype=contract.datatype,
                shape=shape,
                data=memoryview(bytes(math.prod(shape) * dtype.itemsize)),
            )
            for contract, dtype, shape in shapes
        ]
        return tensors, []


class ViewPreprocess:
    """Feature blocks, one a request, joined column by column and encoded."""

    def __init__(self, view: str, view_sql: str, encoders: Sequence[ColumnEncoder]) -> None:
        """`view`: the digest of `view_sql`. Raises MeshError PACK_INVALID when the encoders do
        not fit the view's fields."""
        fields = field_types(view_sql)
        try:
            self._encoding = Encoding(encoders, fields)
        except ValueError as error:
            raise MeshError("PACK_INVALID", str(error)) from error
        self._reader = BlockReader(view, fields, self._encoding)

    def arrays(self, batch: Execute, rows: int) -> Sequence[Array]:
        """numbers and categories (see `Encoding`)."""
        try:
            columns = self._reader.read(batch.blocks, batch.rows)
        except ValueError as error:
            raise _invalid(batch, str(error)) from error
        return self._encoding.encode(columns, rows)

    def example(self) -> tuple[list[Tensor], list[msgspec.Raw]]:
        """Zeros and nulls."""
        return [], [self._reader.example()]


def field_types(view_sql: str) -> dict[str, Dtype]:
    """The fields of a view with their types, in the order of a block's columns."""
    match = _HEADER.match(view_sql)
    if match is None:
        raise MeshError("PACK_INVALID", "view.sql has no /* mortise … */ header")
    try:
        header = msgspec.toml.decode(match.group(1), type=ViewHeader)
    except msgspec.MsgspecError as error:
        raise MeshError("PACK_INVALID", f"view.sql's header: {error}") from error
    return {name: field.dtype for name, field in header.fields.items()}


def _array(
    batch: Execute, tensor: Tensor, contract: TensorContract, dtype: np.dtype[np.generic], rows: int
) -> Array:
    expected = [rows, *contract.shape[1:]]
    if (
        tensor.name != contract.name
        or tensor.datatype != contract.datatype
        or tensor.shape != expected
        or not isinstance(tensor.data, memoryview)
    ):
        raise _invalid(
            batch,
            f"{contract.name} {contract.datatype} {expected} as bin is expected,"
            f" received {tensor.name[:80]} {tensor.datatype} {tensor.shape}",
        )
    try:
        return np.frombuffer(tensor.data, dtype).reshape(expected)
    except ValueError as error:
        received = tensor.data.nbytes
        raise _invalid(
            batch, f"{contract.name}: {received} bytes do not fill {expected}"
        ) from error


def _invalid(batch: Execute, reason: str) -> MeshError:
    model = f"{batch.model_name[:80]} version {batch.model_version[:20]}"
    return MeshError("INVALID_REQUEST", f"{model}: {reason}")
