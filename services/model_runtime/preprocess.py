"""A batch's bytes → the arrays that the model's forward takes. Pure.

Raises MeshError INVALID_REQUEST when they are not what the model's contract says; the orchestrator
checked each request before, so this is about a disagreement inside the mesh.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import msgspec
import numpy as np

from contracts.errors import MeshError
from contracts.execution import Execute
from contracts.features import Dtype, FeatureBlock, FeatureColumn, ViewHeader
from contracts.inference import Tensor
from contracts.pack import ColumnEncoder, ModelContract, TensorContract
from contracts.types import UNSET
from services.model_runtime.encoding import Column, Encoding
from services.model_runtime.mapping import NUMPY_TYPES, Array

_HEADER = re.compile(r"\A\s*/\*[ \t]*mortise\b(.*?)\*/", re.DOTALL)
_COLUMN_TYPES: dict[Dtype, str] = {
    "bool": "BOOL",
    "int64": "INT64",
    "float64": "FP64",
    "string": "BYTES",
    "timestamp": "INT64",
}

_decode_block = msgspec.msgpack.Decoder(FeatureBlock).decode


class Preprocess(Protocol):
    """Makes a model's inputs from a batch."""

    def arrays(self, batch: Execute, rows: int) -> Sequence[Array]:
        """The forward's inputs, `rows` rows each."""
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


class ViewPreprocess:
    """Feature blocks, one a request, joined column by column and encoded."""

    def __init__(self, view: str, view_sql: str, encoders: Sequence[ColumnEncoder]) -> None:
        """`view`: the digest of `view_sql`. Raises MeshError PACK_INVALID when the encoders do
        not fit the view's fields."""
        self._view = view
        self._fields = field_types(view_sql)
        self._used = [
            (place, name, dtype)
            for place, (name, dtype) in enumerate(self._fields.items())
            if any(encoder.field == name for encoder in encoders)
        ]
        try:
            self._encoding = Encoding(encoders, self._fields)
        except ValueError as error:
            raise MeshError("PACK_INVALID", str(error)) from error

    def arrays(self, batch: Execute, rows: int) -> Sequence[Array]:
        """numbers and categories (see `Encoding`)."""
        try:
            blocks = [_decode_block(block) for block in batch.blocks]
        except msgspec.MsgspecError as error:
            raise _invalid(batch, f"a feature block is malformed: {error}") from error
        self._check(batch, blocks)
        columns = {}
        for place, name, dtype in self._used:
            column = _join([block.columns[place] for block in blocks], batch.rows, dtype)
            if column is None:
                raise _invalid(batch, f"{name} has not one {_COLUMN_TYPES[dtype]} or null a row")
            columns[name] = column
        return self._encoding.encode(columns, rows)

    def _check(self, batch: Execute, blocks: Sequence[FeatureBlock]) -> None:
        if [block.rows for block in blocks] != batch.rows:
            found = [block.rows for block in blocks]
            raise _invalid(batch, f"blocks have {found[:8]} rows, requests {batch.rows[:8]}")
        for block in blocks:
            if block.view != self._view:
                raise _invalid(batch, f"the model takes view {self._view}, received {block.view}")
            if len(block.columns) != len(self._fields):
                count = len(block.columns)
                raise _invalid(batch, f"the view has {len(self._fields)} fields, received {count}")
            for place, name, dtype in self._used:
                received = block.columns[place].datatype
                if received != _COLUMN_TYPES[dtype]:
                    raise _invalid(batch, f"{name} is {_COLUMN_TYPES[dtype]}, received {received}")


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


def _join(parts: Sequence[FeatureColumn], rows: Sequence[int], dtype: Dtype) -> Column | None:
    """One column of the whole batch; None when a part does not hold its request's rows."""
    for part, count in zip(parts, rows, strict=True):
        if part.validity is not UNSET and part.validity.nbytes * 8 < count:
            return None
    present = _join_validity(parts, rows)
    if dtype == "string":
        texts = [part.data for part in parts if isinstance(part.data, list)]
        if [len(text) for text in texts] != rows:
            return None
        return Column(list(chain.from_iterable(texts)), present)
    numpy_type = np.dtype(NUMPY_TYPES[_COLUMN_TYPES[dtype]])
    pieces = [part.data for part in parts if isinstance(part.data, memoryview)]
    if [piece.nbytes for piece in pieces] != [count * numpy_type.itemsize for count in rows]:
        return None
    return Column(np.frombuffer(b"".join(pieces), numpy_type), present)


def _join_validity(parts: Sequence[FeatureColumn], rows: Sequence[int]) -> Array | None:
    """One boolean a row of the whole batch, or None when every row has a value."""
    if all(part.validity is UNSET for part in parts):
        return None
    bits = [
        np.ones(count, dtype=np.uint8)
        if part.validity is UNSET
        else np.unpackbits(np.frombuffer(part.validity, np.uint8), count=count, bitorder="little")
        for part, count in zip(parts, rows, strict=True)
    ]
    return np.concatenate(bits).astype(bool)


def _invalid(batch: Execute, reason: str) -> MeshError:
    model = f"{batch.model_name[:80]} version {batch.model_version[:20]}"
    return MeshError("INVALID_REQUEST", f"{model}: {reason}")
