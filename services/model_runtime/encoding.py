"""Features → network inputs, as the pack's encoders say. Vectorised; the training job uses the
same code, so what is served is what was trained.

Columns are whole-batch arrays; nothing here runs per row in Python.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from contracts.features import Dtype
from contracts.pack import ColumnEncoder, Manifest, TensorContract
from contracts.types import UNSET
from services.model_runtime.mapping import Array

UNKNOWN = 0
"""The index of a category that training did not see, and of a null."""


@dataclass(frozen=True, slots=True)
class Column:
    """One feature of n rows. `values`: FP64, INT64 or BOOL array, or for strings a list.
    `present`: booleans, or None when every row has a value."""

    values: Array | Sequence[str | None]
    present: Array | None = None


def input_shapes(manifest: Manifest) -> list[TensorContract]:
    """The network's inputs: the contract's, or for a model with a view what `Encoding` makes."""
    if manifest.contract.view is UNSET:
        return manifest.contract.inputs
    standard = [encoder for encoder in manifest.encoders if encoder.kind == "standard"]
    flags = sum(encoder.null_flag for encoder in standard)
    categories = len(manifest.encoders) - len(standard)
    return [
        TensorContract(name="numbers", datatype="FP32", shape=[-1, len(standard) + flags]),
        TensorContract(name="categories", datatype="INT64", shape=[-1, categories]),
    ]


class Encoding:
    """The encoders of one pack over a view's fields.

    numbers [n, D + flags]: the standardised fields in encoder order, then one 0/1 per encoder
    with a null flag. categories [n, K]: one index per category, in encoder order.
    """

    def __init__(self, encoders: Sequence[ColumnEncoder], fields: Mapping[str, Dtype]) -> None:
        """`fields`: the view's fields with their types. Raises ValueError for an encoder whose
        field the view does not have, or has in a type that it cannot encode."""
        for encoder in encoders:
            _check(encoder, fields.get(encoder.field))
        self._standard = [encoder for encoder in encoders if encoder.kind == "standard"]
        self._means = np.array([encoder.mean for encoder in self._standard])
        self._deviations = np.array([encoder.deviation for encoder in self._standard])
        self._flags = [index for index, encoder in enumerate(self._standard) if encoder.null_flag]
        self._categories = [
            _Category(encoder, fields[encoder.field])
            for encoder in encoders
            if encoder.kind == "category"
        ]

    def encode(self, columns: Mapping[str, Column], rows: int) -> list[Array]:
        """numbers FP32 [rows, D + flags] and categories INT64 [rows, K]."""
        return [self._numbers(columns, rows), self._indices(columns, rows)]

    def _numbers(self, columns: Mapping[str, Column], rows: int) -> Array:
        matrix = np.empty((len(self._standard), rows))  # FP64, standardised before it is rounded
        nulls = {}
        for index, encoder in enumerate(self._standard):
            column = columns[encoder.field]
            matrix[index] = column.values
            if column.present is not None:
                nulls[index] = ~column.present
                matrix[index, nulls[index]] = encoder.mean
        matrix -= self._means[:, None]
        matrix /= self._deviations[:, None]
        numbers = np.zeros((rows, len(self._standard) + len(self._flags)), dtype=np.float32)
        numbers[:, : len(self._standard)] = matrix.T
        for place, index in enumerate(self._flags, len(self._standard)):
            if index in nulls:
                numbers[:, place] = nulls[index]
        return numbers

    def _indices(self, columns: Mapping[str, Column], rows: int) -> Array:
        indices = np.empty((rows, len(self._categories)), dtype=np.int64)
        for place, category in enumerate(self._categories):
            indices[:, place] = category.indices(columns[category.field], rows)
        return indices


class _Category:
    """Values → 1 … len(values), anything else → UNKNOWN."""

    def __init__(self, encoder: ColumnEncoder, dtype: Dtype) -> None:
        self.field = encoder.field
        self._is_text = dtype == "string"
        self._lookup = {value: index for index, value in enumerate(encoder.values, UNKNOWN + 1)}
        if not self._is_text:
            integers = np.array([int(value) for value in encoder.values], dtype=np.int64)
            order = np.argsort(integers)
            self._sorted, self._ranks = integers[order], order + UNKNOWN + 1

    def indices(self, column: Column, rows: int) -> Array:
        """INT64 [rows]."""
        if self._is_text:  # a null is None, which the lookup does not know either
            found = map(self._lookup.get, column.values, repeat(UNKNOWN))
            indices = np.fromiter(found, dtype=np.int64, count=rows)
        else:
            values = np.asarray(column.values, dtype=np.int64)
            places = np.searchsorted(self._sorted, values)
            places[places == len(self._sorted)] = 0
            indices = np.where(self._sorted[places] == values, self._ranks[places], UNKNOWN)
        if column.present is not None:
            indices[~column.present] = UNKNOWN
        return indices


def _check(encoder: ColumnEncoder, dtype: Dtype | None) -> None:
    fits = {
        "standard": ("float64", "int64", "bool"),
        "category": ("string", "int64", "bool"),
    }[encoder.kind]
    if dtype not in fits:
        raise ValueError(
            f"encoder {encoder.kind} of field {encoder.field!r} takes {', '.join(fits)};"
            f" the view has {dtype or 'no such field'}"
        )
    if encoder.kind == "category" and not encoder.values:
        raise ValueError(f"category {encoder.field!r} has no values")
    if encoder.kind == "category" and dtype != "string":
        for value in encoder.values:
            if str(int(value)) != value:
                raise ValueError(f"category {encoder.field!r}: {value!r} is no integer")
