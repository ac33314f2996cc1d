"""Features → network inputs, as the pack's encoders say. Vectorised; the training job uses the
same code, so what is served is what was trained.

Nothing here runs per row in Python.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from contracts.features import Dtype
from contracts.pack import ColumnEncoder, Manifest, TensorContract
from contracts.types import UNSET
from services.model_runtime.mapping import Array

UNKNOWN = 0
"""The index of a category that training did not see, and of a null."""
exact_integer_max = 2**53
"""Integers travel as FP64, which holds every one up to here."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The fields of n rows that the encoders use, in the order of `Encoding.numeric` and
    `Encoding.texts`. `numbers`: FP64 [numeric, n], integers and booleans included; what stands in
    a null's place does not matter. `present`: booleans [numeric, n], None when nothing is null.
    `texts`: a sequence of n strings, or None for a null, per text field."""

    numbers: Array
    present: Array | None
    texts: Sequence[Sequence[str | None]]


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

    numbers FP32 [n, D + flags]: the standardised fields in encoder order, a null as 0, then one
    0/1 per encoder with a null flag. categories INT64 [n, K]: one index each, in encoder order.
    """

    def __init__(self, encoders: Sequence[ColumnEncoder], fields: Mapping[str, Dtype]) -> None:
        """`fields`: the view's fields with their types. Raises ValueError for an encoder whose
        field the view does not have, or has in a type that it cannot encode."""
        for encoder in encoders:
            _check(encoder, fields.get(encoder.field))
        used = {encoder.field for encoder in encoders}
        self.numeric = [name for name in fields if name in used and fields[name] != "string"]
        self.texts = [name for name in fields if name in used and fields[name] == "string"]
        standard = [encoder for encoder in encoders if encoder.kind == "standard"]
        self._rows = np.array([self.numeric.index(encoder.field) for encoder in standard], int)
        self._means = np.array([[encoder.mean] for encoder in standard]).reshape(-1, 1)
        self._deviations = np.array([[encoder.deviation] for encoder in standard]).reshape(-1, 1)
        self._flagged = np.flatnonzero([encoder.null_flag for encoder in standard])
        self._categories = [
            _TextCategory(encoder, self.texts.index(encoder.field))
            if fields[encoder.field] == "string"
            else _IntegerCategory(encoder, self.numeric.index(encoder.field))
            for encoder in encoders
            if encoder.kind == "category"
        ]

    def encode(self, columns: Columns, rows: int) -> list[Array]:
        """numbers and categories of these rows."""
        scaled = (columns.numbers[self._rows] - self._means) / self._deviations  # FP64 [D, n]
        width = len(self._rows)
        numbers = np.zeros((rows, width + len(self._flagged)), dtype=np.float32)
        if columns.present is not None:
            absent = ~columns.present[self._rows]
            scaled[absent] = 0.0
            numbers[:, width:] = absent[self._flagged].T
        numbers[:, :width] = scaled.T
        categories = np.empty((rows, len(self._categories)), dtype=np.int64)
        for place, category in enumerate(self._categories):
            categories[:, place] = category.indices(columns, rows)
        return [numbers, categories]


class _TextCategory:
    """Strings → 1 … len(values), anything else and a null → UNKNOWN."""

    def __init__(self, encoder: ColumnEncoder, place: int) -> None:
        self._place = place
        self._lookup: dict[str | None, int] = {
            value: index for index, value in enumerate(encoder.values, UNKNOWN + 1)
        }

    def indices(self, columns: Columns, rows: int) -> Array:
        """INT64 [rows]."""
        find: Callable[[str | None, int], int] = self._lookup.get
        found = map(find, columns.texts[self._place], repeat(UNKNOWN))
        return np.fromiter(found, dtype=np.int64, count=rows)


class _IntegerCategory:
    """Integers and booleans → 1 … len(values), anything else and a null → UNKNOWN."""

    def __init__(self, encoder: ColumnEncoder, place: int) -> None:
        self._place = place
        values = np.array([float(value) for value in encoder.values])
        order = np.argsort(values)
        self._sorted, self._indices = values[order], order + UNKNOWN + 1

    def indices(self, columns: Columns, rows: int) -> Array:
        """INT64 [rows]."""
        values = columns.numbers[self._place]
        places = np.searchsorted(self._sorted, values) % len(self._sorted)
        known = self._sorted[places] == values
        if columns.present is not None:
            known &= columns.present[self._place]
        return np.where(known, self._indices[places], UNKNOWN)


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
            if str(int(value)) != value or abs(int(value)) > exact_integer_max:
                raise ValueError(f"category {encoder.field!r}: {value!r} is no integer up to 2⁵³")
