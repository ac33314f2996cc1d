"""One deterministic sample of every contract type, for golden frames and conformance checks.

A sample holds every field that the type knows, so that a golden frame changes when any field
does. Where the type alone cannot say it (exactly one of several, bytes that fit a shape), `CHOSEN`
does. Pure: a type in, builtin values out.
"""

from typing import Any

from msgspec import inspect

from contracts.control import Receipts, Rollback
from contracts.execution import Execute, Executed
from contracts.features import (
    FeatureBatchItem,
    FeatureBlock,
    FeatureColumn,
)
from contracts.frames import Context
from contracts.inference import InferenceRequest, Prediction, Tensor
from contracts.lineage import Receipt
from contracts.policies import Then

OMIT = object()
"""In `CHOSEN`: the field is left out."""

_PATTERNS = {
    r"^[A-Za-z_][A-Za-z0-9_.\-]*$": "delay",
    r"^[1-9][0-9]*$": "1",
    r"^([1-9][0-9]*|[A-Za-z][A-Za-z0-9_.\-]*)$": "stable",
    r"^[A-Za-z][A-Za-z0-9_.\-]{0,63}$": "stable",
    r"^[0-9a-f]{32}$": "0123456789abcdef" * 2,
    r"^sha256:[0-9a-f]{64}$": "sha256:" + "0123456789abcdef" * 4,
    r"^[A-Z]{3}$": "EUR",
}
_INSTANT = "2013-07-01T12:00:00Z"
_INSTANTS = {"at", "event_time", "event_time_max"}


def sample(contract: Any) -> Any:
    """The sample of a type as builtin values (maps, lists, strings, numbers, bytes)."""
    return _value(inspect.type_info(contract), "")


def _value(kind: inspect.Type, field: str) -> Any:
    match kind:
        case inspect.StructType():
            return _struct(kind)
        case inspect.Metadata():
            return _value(kind.type, field)
        case inspect.ListType():
            return _items(kind.item_type, field)
        case inspect.TupleType():
            return [_value(item, field) for item in kind.item_types]
        case inspect.DictType():
            return {_value(kind.key_type, "key"): _value(kind.value_type, field)}
        case inspect.UnionType():
            return _value(_first(kind), field)
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.StrType():
            return _text(kind, field)
        case inspect.IntType():
            return max(1, kind.ge or 0)
        case inspect.FloatType():
            return max(0.5, 2.0 * (kind.gt or 0.0))
        case inspect.BoolType():
            return True
        case inspect.BytesType() | inspect.MemoryViewType():
            return b"\x01"
        case inspect.AnyType():
            return {}
        case inspect.RawType():
            return [{"column": 1}]  # rows travel undecoded
    raise AssertionError(f"no sample for {kind}")


def _struct(kind: inspect.StructType) -> Any:
    chosen = CHOSEN.get(kind.cls, {})
    values = {
        field.encode_name: chosen[field.name]
        if field.name in chosen
        else _value(field.type, field.name)
        for field in kind.fields
    }
    if kind.array_like:
        return list(values.values())
    tag = {} if kind.tag_field is None else {kind.tag_field: kind.tag}
    return tag | {name: value for name, value in values.items() if value is not OMIT}


def _items(item: inspect.Type, field: str) -> list[Any]:
    """One item; of a union of structs one of each, so that every alternative has a sample."""
    if isinstance(item, inspect.UnionType) and isinstance(item.types[0], inspect.StructType):
        return [_value(alternative, field) for alternative in item.types]
    return [_value(item, field)]


def _first(union: inspect.UnionType) -> inspect.Type:
    return next(kind for kind in union.types if not isinstance(kind, inspect.NoneType))


def _text(kind: inspect.StrType, field: str) -> str:
    if kind.pattern is not None:
        return _PATTERNS[kind.pattern]
    return _INSTANT if field in _INSTANTS else field or "text"


CHOSEN: dict[type, dict[str, Any]] = {
    Context: {"deadline_ms": 5_000, "stream": False},
    InferenceRequest: {
        "model_name": "delay",
        "stream": False,
        "explain": False,
        **dict.fromkeys(("inputs", "text", "input_ids", "attention_mask", "messages"), OMIT),
    },
    Tensor: {
        "datatype": "FP32",
        "shape": [1, 2],
        "data": bytes.fromhex("0000003f000080bf"),  # 0.5, −1.0
    },
    FeatureColumn: {"datatype": "FP64", "data": bytes.fromhex("000000000000e03f")},  # 0.5
    Then: {"version": OMIT, "refuse": OMIT},
    Rollback: {"to": OMIT},
}
# Fields that travel as spliced bytes: their samples are those of the type inside.
CHOSEN[FeatureBatchItem] = {"block": sample(FeatureBlock)}
CHOSEN[Execute] = {
    "tensors": [],
    "text": [],
    "blocks": [sample(FeatureBlock)],
    "lengths": [],
}
CHOSEN[Executed] = {"predictions": [[sample(Prediction)]]}
CHOSEN[Receipts] = {"receipts": [sample(Receipt)]}
