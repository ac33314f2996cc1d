"""Tensors of the Open Inference Protocol to and from numpy arrays, torch tensors and lists.

numpy and torch are used where the caller already has them and never imported for encoding.
Tensor data travels as little-endian C-order bytes.
"""

import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

# datatype → struct letter; the numpy name is the datatype in words, BF16 has neither.
_LETTERS = {
    "BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
_NUMPY = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
_NUMPY_OF = {datatype: name for name, datatype in _NUMPY.items()}


def encode_inputs(inputs: Any) -> list[dict[str, Any]]:
    """The `inputs` of a request, from a map of name → array or from a list of tensor maps."""
    if isinstance(inputs, Mapping):
        return [encode_tensor(name, value) for name, value in inputs.items()]
    return [
        tensor | encode_tensor(tensor["name"], tensor["data"])
        if _is_array(tensor["data"])
        else dict(tensor)
        for tensor in inputs
    ]


def encode_tensor(name: str, value: Any) -> dict[str, Any]:
    """One tensor from an array with its own datatype, or from nested lists: claims are BOOL,
    strings BYTES, numbers FP32 whether or not they are whole. Raises ValueError for ragged or
    mixed lists."""
    if isinstance(value, Mapping):
        return {"name": name, **value}
    if _is_torch(value):
        return _encode_torch(name, value)
    if _is_array(value):
        return _encode_numpy(name, value)
    shape, flat = _flatten(value)
    datatype = _datatype_of(name, flat)
    data = flat if datatype == "BYTES" else struct.pack(f"<{len(flat)}{_LETTERS[datatype]}", *flat)
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def token_rows(value: Any) -> list[list[int]]:
    """Rows of ids, or of a mask, from an array, a list of rows, or one row."""
    rows = value.tolist() if _is_array(value) else value
    rows = [row.tolist() if _is_array(row) else row for row in rows]
    return [list(row) for row in rows] if rows and isinstance(rows[0], Sequence) else [rows]


def decode_data(tensor: Mapping[str, Any]) -> Any:
    """The data of an answer's tensor: a numpy array of its shape where numpy is installed, else a
    flat list. BF16 comes as float32."""
    data, datatype = tensor["data"], tensor["datatype"]
    numpy = _numpy()
    if numpy is None or datatype == "BYTES":
        return flat_list(tensor)
    if not isinstance(data, bytes):
        return numpy.array(data, _NUMPY_OF.get(datatype, "float32")).reshape(tensor["shape"])
    if datatype == "BF16":
        wide = numpy.frombuffer(data, "<u2").astype("<u4") << 16
        return wide.view("<f4").reshape(tensor["shape"])
    kind = numpy.dtype(_NUMPY_OF[datatype]).newbyteorder("<")
    return numpy.frombuffer(data, kind).reshape(tensor["shape"])


def flat_list(tensor: Mapping[str, Any]) -> list[Any]:
    """The data of an answer's tensor as a flat list of numbers or strings."""
    data, datatype = tensor["data"], tensor["datatype"]
    if not isinstance(data, bytes):
        return list(data)
    if datatype == "BF16":
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        return list(struct.unpack(f"<{len(halves)}f", struct.pack(
            f"<{len(halves)}I", *(half << 16 for half in halves)
        )))  # fmt: skip
    letter = _LETTERS[datatype]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data))


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        return None
    return numpy


# A module that another thread is just importing has no such class yet, and nobody has one of its
# values.


def _is_torch(value: Any) -> bool:
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def _is_array(value: Any) -> bool:
    return isinstance(value, getattr(sys.modules.get("numpy"), "ndarray", ())) or _is_torch(value)


def _encode_numpy(name: str, array: Any) -> dict[str, Any]:
    shape = list(array.shape)
    if array.dtype.kind in "US" or array.dtype.kind == "O":
        return {"name": name, "datatype": "BYTES", "shape": shape, "data": array.ravel().tolist()}
    datatype = _NUMPY.get(array.dtype.name)
    if datatype is None:
        raise ValueError(f"{name}: no datatype for numpy's {array.dtype}")
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return {"name": name, "datatype": datatype, "shape": shape, "data": little.tobytes("C")}


def _encode_torch(name: str, tensor: Any) -> dict[str, Any]:
    torch = sys.modules["torch"]
    dense = tensor.detach().cpu().contiguous()
    if dense.dtype == torch.bfloat16:
        encoded = _encode_numpy(name, dense.view(torch.int16).numpy())
        return encoded | {"datatype": "BF16"}
    return _encode_numpy(name, dense.numpy())


def _flatten(value: Any) -> tuple[list[int], list[Any]]:
    """Shape and elements of nested lists, C order. Raises ValueError when they are ragged."""
    if hasattr(value, "tolist"):  # arrays and their scalars inside a list
        value = value.tolist()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return [], [value]
    parts = [_flatten(item) for item in value]
    shapes = {tuple(shape) for shape, _ in parts}
    if len(shapes) > 1:
        raise ValueError(f"nested lists are ragged: shapes {sorted(shapes)}")
    inner = list(shapes.pop()) if shapes else []
    return [len(parts), *inner], [element for _, flat in parts for element in flat]


def _datatype_of(name: str, flat: list[Any]) -> str:
    kinds = {type(element) for element in flat}
    if kinds <= {bool} and flat:
        return "BOOL"
    if kinds <= {int, float}:
        return "FP32"
    if kinds == {str}:
        return "BYTES"
    raise ValueError(f"{name}: no datatype for {', '.join(sorted(k.__name__ for k in kinds))}")
