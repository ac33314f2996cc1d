"""Answers as objects."""

import copy
import struct

import numpy as np
import pytest

from mortise.result import Record, Result

FIELDS = {
    "id": "a",
    "outputs": [
        {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": struct.pack("<2f", 1, 2)}
    ],
    "predictions": [{"label": "late", "probabilities": {"late": 0.75, "on_time": 0.25}}],
}


def test_attributes_and_keys_are_the_same() -> None:
    """Nested maps, also in lists, are read both ways."""
    result = Result(FIELDS)
    assert result.id == result["id"] == "a"
    assert result.predictions[0].label == result["predictions"][0]["label"] == "late"
    assert dict(result).keys() == FIELDS.keys()
    assert "id" in result
    assert "text" not in result
    assert result.get("text", "none") == "none"
    assert len(result) == 3
    assert result.to_builtin() == FIELDS


def test_a_map_of_labels_works_like_a_dict() -> None:
    """`items()` and `values()` are those of a dict where no field has that name."""
    probabilities = Result(FIELDS).predictions[0].probabilities
    assert dict(probabilities.items()) == {"late": 0.75, "on_time": 0.25}
    assert sum(probabilities.values()) == 1.0
    assert Record({"values": {"a": 1}}).values == {"a": 1}


def test_optional_fields_of_the_contract_are_none() -> None:
    """A field that did not come is None, a misspelt one is an error that names the others."""
    result = Result(FIELDS)
    assert result.freshness_s is None
    assert result.items is None
    with pytest.raises(AttributeError, match="no field 'predictionz'; it has id"):
        _ = result.predictionz
    with pytest.raises(KeyError):
        _ = result["freshness_s"]


def test_outputs_are_arrays() -> None:
    """By name the array, by place the tensor with its array in `data`."""
    outputs = Result(FIELDS).outputs
    np.testing.assert_array_equal(outputs["y"], [[1.0, 2.0]])
    assert outputs[0].datatype == "FP32"
    np.testing.assert_array_equal(np.asarray(outputs[0]), outputs[0]["data"])
    with pytest.raises(KeyError):
        _ = outputs["z"]


def test_a_record_can_be_copied_and_printed() -> None:
    """Copies are equal, and the text shows the fields."""
    record = Record({"a": {"b": 1}})
    assert copy.deepcopy(record) == record == {"a": {"b": 1}}
    assert repr(record) == "Record({'a': {'b': 1}})"
