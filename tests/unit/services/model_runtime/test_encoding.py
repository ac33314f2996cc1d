"""Encoders: the vectorised form equals the definition written out row by row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from contracts.features import Dtype
from contracts.pack import ColumnEncoder
from services.model_runtime.encoding import Columns, Encoding

FIELDS: dict[str, Dtype] = {
    "carrier": "string",
    "temp": "float64",
    "count": "int64",
    "weekend": "bool",
    "hour": "int64",
    "observed": "timestamp",
}
ENCODERS = (
    ColumnEncoder(field="hour", kind="category", values=["17", "5", "23"]),
    ColumnEncoder(field="temp", kind="standard", mean=50.0, deviation=7.0, null_flag=True),
    ColumnEncoder(field="carrier", kind="category", values=["AA", "UA"]),
    ColumnEncoder(field="count", kind="standard", mean=10.0, deviation=3.0),
    ColumnEncoder(field="weekend", kind="standard", mean=0.3, deviation=0.4, null_flag=True),
)


def reference(
    values: dict[str, Sequence[object]], rows: int
) -> tuple[list[list[float]], list[list[int]]]:
    """What the encoders mean, one value at a time; None is a null."""
    numbers: list[list[float]] = []
    categories: list[list[int]] = []
    standard = [encoder for encoder in ENCODERS if encoder.kind == "standard"]
    for row in range(rows):
        line: list[float] = []
        for encoder in standard:
            value = values[encoder.field][row]
            number = (
                encoder.mean
                if value is None
                else float(str(value).replace("True", "1").replace("False", "0"))
            )
            line.append((number - encoder.mean) / encoder.deviation)
        line += [
            float(values[encoder.field][row] is None) for encoder in standard if encoder.null_flag
        ]
        numbers.append(line)
        categories.append(
            [
                encoder.values.index(str(value)) + 1 if str(value) in encoder.values else 0
                for encoder in ENCODERS
                if encoder.kind == "category"
                for value in [values[encoder.field][row]]
            ]
        )
    return numbers, categories


def columns(encoding: Encoding, values: dict[str, Sequence[Any]]) -> Columns:
    """As preprocessing makes them: a null's slot holds anything."""
    present = np.array([[value is not None for value in values[name]] for name in encoding.numeric])
    numbers = np.array(
        [
            [np.nan if value is None else float(value) for value in values[name]]
            for name in encoding.numeric
        ]
    )
    texts = [list(values[name]) for name in encoding.texts]
    return Columns(numbers, None if present.all() else present, texts)


def test_encoding_equals_its_definition() -> None:
    """Random rows with nulls and unknown values give the numbers of the row-by-row definition."""
    random = np.random.default_rng(3)
    rows = 500
    choices: dict[str, list[object]] = {
        "carrier": ["AA", "UA", "", "unseen", None],
        "temp": [*random.normal(50, 20, 40).tolist(), None],
        "count": [*range(-5, 40), None],
        "weekend": [True, False, None],
        "hour": [5, 17, 23, 0, 24, -1, None],
    }
    values = {
        name: [some[place] for place in random.integers(len(some), size=rows)]
        for name, some in choices.items()
    }
    encoding = Encoding(ENCODERS, FIELDS)
    numbers, categories = encoding.encode(columns(encoding, values), rows)
    expected_numbers, expected_categories = reference(values, rows)
    np.testing.assert_allclose(numbers, expected_numbers, rtol=1e-6, atol=1e-6)
    assert categories.tolist() == expected_categories
    assert (numbers.dtype, categories.dtype) == (np.float32, np.int64)


def test_fields_are_asked_for_in_the_views_order() -> None:
    """What no encoder uses is not asked for."""
    encoding = Encoding(ENCODERS, FIELDS)
    assert encoding.numeric == ["temp", "count", "weekend", "hour"]
    assert encoding.texts == ["carrier"]


def test_a_column_without_nulls_sets_no_flag() -> None:
    """The extra input of `null_flag` is there and 0."""
    encoding = Encoding(ENCODERS, FIELDS)
    row = {"carrier": "AA", "temp": 57.0, "count": 10, "weekend": True, "hour": 5}
    full = columns(encoding, {name: [value] for name, value in row.items()})
    numbers, categories = encoding.encode(full, 1)
    np.testing.assert_allclose(numbers[0], [1.0, 0.0, 1.75, 0.0, 0.0], rtol=1e-6)
    assert categories[0].tolist() == [2, 1]


def test_a_pack_may_use_numbers_alone() -> None:
    """No category: an empty second input."""
    encoding = Encoding(ENCODERS[1:2], FIELDS)
    numbers, categories = encoding.encode(columns(encoding, {"temp": [43.0, None]}), 2)
    assert numbers.tolist() == [[-1, 0], [0, 1]]
    assert categories.shape == (2, 0)


@pytest.mark.parametrize(
    ("encoder", "reason"),
    [
        (ColumnEncoder(field="absent", kind="standard"), "no such field"),
        (ColumnEncoder(field="carrier", kind="standard"), "the view has string"),
        (ColumnEncoder(field="temp", kind="category", values=["1"]), "the view has float64"),
        (ColumnEncoder(field="observed", kind="standard"), "the view has timestamp"),
        (ColumnEncoder(field="carrier", kind="category"), "has no values"),
        (ColumnEncoder(field="hour", kind="category", values=["05"]), "no integer"),
        (ColumnEncoder(field="hour", kind="category", values=["five"]), "invalid literal"),
        (ColumnEncoder(field="hour", kind="category", values=[str(2**53 + 1)]), "up to 2⁵³"),
    ],
)
def test_an_encoder_that_does_not_fit_its_field_is_refused(
    encoder: ColumnEncoder, reason: str
) -> None:
    """The view's types are checked when the model loads, not when a row comes."""
    with pytest.raises(ValueError, match=reason):
        Encoding([encoder], FIELDS)
