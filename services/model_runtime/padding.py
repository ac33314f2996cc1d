"""Rows of unequal length → the rectangular arrays that a token model's forward takes. Pure."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from contracts.errors import MeshError
from contracts.execution import Execute
from contracts.inference import Datatype, Tensor
from contracts.pack import TOKEN_INPUTS, ModelContract, TokenContract
from services.model_runtime.mapping import NUMPY_TYPES, Array

_IDS, _MASK = TOKEN_INPUTS
_SENT: dict[str, tuple[Datatype, np.dtype[Any]]] = {
    _IDS: ("INT32", np.dtype("<i4")),
    _MASK: ("UINT8", np.dtype("|u1")),
}


class TokenPreprocess:
    """Pads the rows of a batch to its longest one, with the pack's id and on its side."""

    def __init__(self, contract: ModelContract, tokens: TokenContract) -> None:
        self._tokens = tokens
        self._dtypes = [
            np.dtype(NUMPY_TYPES[tensor.datatype]).newbyteorder("=") for tensor in contract.inputs
        ]

    def arrays(self, batch: Execute, rows: int) -> Sequence[Array]:
        """Ids, and the mask if the model has one, [rows, longest] each; fresh memory.

        Raises INVALID_REQUEST when lengths and tensors do not fit each other.
        """
        given, row_tokens_max = batch.lengths, self._tokens.row_tokens_max
        if len(given) != rows or min(given) < 1:
            raise _invalid(batch, f"{rows} rows have the lengths {given[:8]}")
        if max(given) > row_tokens_max:  # one such row would make all the others as long
            raise _invalid(
                batch, f"a row of {max(given)} ids, row_tokens_max is {row_tokens_max}; shorten it"
            )
        flat = _flat(batch, sum(given))
        lengths = np.array(given, np.int64)
        longest = int(lengths.max())
        places = np.arange(longest)
        if self._tokens.pad_side == "right":
            is_real = places < lengths[:, None]
        else:
            is_real = places >= longest - lengths[:, None]
        ids = np.full((rows, longest), self._tokens.pad_id, self._dtypes[0])
        ids[is_real] = flat[0]
        if len(self._dtypes) == 1:
            return [ids]
        mask = is_real.astype(self._dtypes[1])
        if len(flat) > 1:
            mask[is_real] = flat[1]
        return [ids, mask]

    def example(self) -> tuple[list[Tensor], list[msgspec.Raw]]:
        """One row of one id."""
        name, (datatype, dtype) = _IDS, _SENT[_IDS]
        data = memoryview(bytes(dtype.itemsize))
        return [Tensor(name=name, datatype=datatype, shape=[1], data=data)], []


def _flat(batch: Execute, count: int) -> list[Array]:
    """The tensors as they were sent: ids, and the mask unless every id counts."""
    names = tuple(tensor.name for tensor in batch.tensors)
    if names not in (TOKEN_INPUTS[:1], TOKEN_INPUTS):
        raise _invalid(batch, f"{' and '.join(TOKEN_INPUTS)} are expected, received {names}")
    found = []
    for tensor in batch.tensors:
        datatype, dtype = _SENT[tensor.name]
        data = tensor.data
        if (
            tensor.datatype != datatype
            or tensor.shape != [count]
            or not isinstance(data, memoryview)
            or data.nbytes != count * dtype.itemsize
        ):
            raise _invalid(
                batch,
                f"{tensor.name} {datatype} [{count}] as bin is expected, received"
                f" {tensor.datatype} {tensor.shape}",
            )
        found.append(np.frombuffer(data, dtype))
    return found


def _invalid(batch: Execute, reason: str) -> MeshError:
    model = f"{batch.model_name[:80]} version {batch.model_version[:20]}"
    return MeshError("INVALID_REQUEST", f"{model}: {reason}")
