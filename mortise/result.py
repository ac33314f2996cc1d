"""Answers as objects: attributes and mapping access over what came off the wire."""

from collections.abc import Iterator, Mapping
from typing import Any

from mortise.generated import INFER_FIELDS
from mortise.tensors import decode_data


class Record:
    """A map of an answer: `record.name`, `record["name"]`, `in`, `get`, `keys`, `dict(record)`.

    Nested maps are records too. `items()` and `values()` work as a dict's, unless the answer has
    a field of that name. Any other attribute that is no field raises AttributeError.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = dict(fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying asks for such before `_fields` is set
            raise AttributeError(name)
        if name in self._fields:
            return self[name]
        if name in ("items", "values"):
            return getattr({key: self[key] for key in self}, name)
        known = ", ".join(map(str, self._fields))
        raise AttributeError(f"the answer has no field {name!r}; it has {known}")

    def __getitem__(self, name: str) -> Any:
        return wrap(self._fields[name])

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        return self._fields == (other._fields if isinstance(other, Record) else other)

    __hash__ = None  # type: ignore[assignment]  # mutable inside, like a dict

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._fields!r})"

    def keys(self) -> list[str]:
        """The fields that came."""
        return list(self._fields)

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or the default when it did not come."""
        return self[name] if name in self._fields else default

    def to_builtin(self) -> dict[str, Any]:
        """The answer as plain maps and lists; tensor data stay bytes."""
        return self._fields


class OutputTensor(Record):
    """A tensor of an answer; `data` is a numpy array of its shape, or without numpy a list."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        return decode_data(self._fields) if name == "data" else super().__getitem__(name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self["data"].__array__(dtype)


class Outputs(list[OutputTensor]):
    """The tensors in order; by name the array itself: `result.outputs["y"]`."""

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        for tensor in self:
            if tensor.name == key:
                return tensor.data
        raise KeyError(key)


class Result(Record):
    """The answer of `infer`. A field of the contract that did not come is None as an attribute."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name in INFER_FIELDS and name not in self:
            return None
        return super().__getattr__(name)

    def __getitem__(self, name: str) -> Any:
        if name == "outputs":
            return Outputs(OutputTensor(tensor) for tensor in self._fields[name])
        return super().__getitem__(name)


def wrap(value: Any) -> Any:
    """Maps as records, at any depth of lists; everything else as it is."""
    if isinstance(value, dict):
        return Record(value)
    if isinstance(value, list):
        return [wrap(item) for item in value]
    return value
