"""Arrays, tensors and lists to the wire's tensors and back."""

import struct
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest

from mortise.tensors import decode_data, encode_inputs, encode_tensor, flat_list, token_rows

DTYPES = {
    "BOOL": "?", "INT8": "i1", "INT16": "i2", "INT32": "i4", "INT64": "i8", "UINT8": "u1",
    "UINT16": "u2", "UINT32": "u4", "UINT64": "u8", "FP16": "f2", "FP32": "f4", "FP64": "f8",
}  # fmt: skip


@pytest.mark.parametrize(("datatype", "dtype"), DTYPES.items(), ids=DTYPES)
def test_an_array_survives_the_wire(datatype: str, dtype: str) -> None:
    """Every datatype keeps its bytes, shape and values; big-endian and strided ones too."""
    plain = np.arange(12).reshape(3, 4).astype(dtype)
    for array in (plain, plain.T, plain[::2, 1:], plain.astype(plain.dtype.newbyteorder(">"))):
        tensor = encode_tensor("x", array)
        assert (tensor["datatype"], tensor["shape"]) == (datatype, list(array.shape))
        assert tensor["data"] == array.astype("<" + dtype.lstrip("<")).tobytes("C")
        np.testing.assert_array_equal(decode_data(tensor), array)
        assert flat_list(tensor) == array.ravel().tolist()


LISTS: dict[str, tuple[Any, str, list[int], list[Any]]] = {
    "numbers": ([[1.0, 2], [3, 4]], "FP32", [2, 2], [1.0, 2.0, 3.0, 4.0]),
    "whole numbers": ([1, 2], "FP32", [2], [1.0, 2.0]),
    "claims": ([[True], [False]], "BOOL", [2, 1], [True, False]),
    "scalar": (0.5, "FP32", [], [0.5]),
    "empty": ([], "FP32", [0], []),
    "empty rows": ([[], []], "FP32", [2, 0], []),
    "tuples": (((1.5,), (2.5,)), "FP32", [2, 1], [1.5, 2.5]),
    "arrays in a list": ([np.float32([1, 2]), np.float32([3, 4])], "FP32", [2, 2], [1, 2, 3, 4]),
}


@pytest.mark.parametrize(("value", "datatype", "shape", "flat"), LISTS.values(), ids=LISTS)
def test_lists_become_tensors(value: Any, datatype: str, shape: list[int], flat: Any) -> None:
    """Nested lists get the datatype of their elements and the shape of their nesting."""
    tensor = encode_tensor("x", value)
    assert (tensor["datatype"], tensor["shape"], flat_list(tensor)) == (datatype, shape, flat)


def test_strings_stay_a_list() -> None:
    """BYTES has no fixed size."""
    assert encode_tensor("x", ["a", "b"]) == {
        "name": "x", "datatype": "BYTES", "shape": [2], "data": ["a", "b"],
    }  # fmt: skip
    assert encode_tensor("x", np.array(["a"]))["data"] == ["a"]


@pytest.mark.parametrize("value", [[[1], [2, 3]], [1, "a"], [b"a"], [None], np.array([1j])])
def test_what_has_no_tensor_is_refused(value: Any) -> None:
    """Ragged, mixed and unknown elements are errors of the caller."""
    with pytest.raises(ValueError, match=r"ragged|no datatype"):
        encode_tensor("x", value)


def test_inputs_are_a_map_or_tensors_of_the_protocol() -> None:
    """A tensor that is already written for the protocol passes as it is."""
    written = {"name": "x", "datatype": "FP64", "shape": [1], "data": [1]}
    assert encode_inputs([written]) == [written]
    assert encode_inputs({"x": {"datatype": "FP64", "shape": [1], "data": [1]}}) == [written]
    assert encode_inputs({"x": [1.0]}) == encode_inputs([{"name": "x", "data": np.float32([1.0])}])


@pytest.mark.parametrize(
    "ids",
    [
        [[1, 2], [3, 4]],
        ((1, 2), (3, 4)),
        np.array([[1, 2], [3, 4]]),
        [np.array([1, 2]), np.array([3, 4])],
    ],
)
def test_rows_of_ids_come_from_lists_and_arrays(ids: Any) -> None:
    """Plain integers, row by row."""
    rows = token_rows(ids)
    assert rows == [[1, 2], [3, 4]]
    assert all(type(one) is int for row in rows for one in row)


def test_ids_alone_are_one_row() -> None:
    """A list or an array of numbers; no rows stay no rows."""
    assert token_rows([1, 2, 3]) == token_rows(np.array([1, 2, 3])) == [[1, 2, 3]]
    assert token_rows([[1], [2, 3]]) == [[1], [2, 3]]
    assert token_rows([[]]) == [[]]


def test_answers_are_lists_where_numpy_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without numpy the data of an output is a flat list."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    tensor = {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": struct.pack("<2f", 1, 2)}
    assert decode_data(tensor) == [1.0, 2.0]
    assert decode_data(tensor | {"data": [1.0, 2.0]}) == [1.0, 2.0]


def test_encoding_imports_no_array_library() -> None:
    """A client that sends lists pays for neither numpy nor torch."""
    program = (
        "import sys; from mortise.tensors import encode_tensor; encode_tensor('x', [[1.0]]);"
        "sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_lists_are_encoded_while_another_thread_imports_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It imports the module for the first answer that it decodes, which takes a moment in which
    `sys.modules` has it without its classes."""
    for name in ("numpy", "torch"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    tensor = encode_tensor("x", [[1.0, 2.0]])
    assert (tensor["datatype"], tensor["shape"]) == ("FP32", [1, 2])
