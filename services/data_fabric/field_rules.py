"""The rules of one field: what its contract allows, and how a breach is told.

The same for a request's columns and for features. Pure; decoding is `validation`'s.
"""

import math

from msgspec.msgpack import Ext

from contracts.errors import MeshError
from contracts.features import FieldContract
from contracts.types import UNSET, Scalar

INT64 = (-(2**63), 2**63 - 1)
value_characters_max = 64
"""A longer value is cut in an error's message."""


class FieldRefused(Exception):
    """One value breaks its contract: which field, which limit, what was received. `told` says it
    in other words where there is no value to show."""

    def __init__(self, field: str, limit: str, value: object, told: str = "") -> None:
        super().__init__(field, limit, value)
        self.field, self.limit, self.value, self.told = field, limit, value, told

    def error(self, row: int) -> MeshError:
        """FEATURE_INVALID with field, limit and value in words and as details."""
        shown = repr(self.value)
        if len(shown) > value_characters_max:
            shown = shown[:value_characters_max] + "…"
        details: dict[str, Scalar] = {
            "row": row, "field": self.field, "limit": self.limit, "value": shown,
        }  # fmt: skip
        told = self.told or f"{self.field} is {shown}, its contract wants {self.limit}"
        return MeshError("FEATURE_INVALID", f"row {row}: {told}", details=details)


def int_range(contract: FieldContract) -> tuple[int, int]:
    """The integers of a column's range, within 64 bits."""
    if contract.range is UNSET:
        return INT64
    low, high = contract.range
    return (
        INT64[0] if low <= INT64[0] else math.ceil(low),
        INT64[1] if high >= INT64[1] else math.floor(high),
    )


def instant_range(contract: FieldContract) -> tuple[int, int] | None:
    """A timestamp's range, declared in seconds since 1970, in microseconds; else None."""
    if contract.range is UNSET or contract.dtype != "timestamp":
        return None
    return round(contract.range[0] * 1e6), round(contract.range[1] * 1e6)


def bounds(contract: FieldContract) -> tuple[float, float]:
    """A declared range in the units of decoded values: integers as integers (Python compares them
    faster and exactly), instants in microseconds."""
    assert contract.range is not UNSET, "asked where there is a range"
    if contract.dtype == "int64":
        return int_range(contract)
    return instant_range(contract) or contract.range


def range_limit(contract: FieldContract) -> str:
    """A declared range in words."""
    assert contract.range is not UNSET, "asked where there is a range"
    low, high = contract.range
    unit = " seconds since 1970" if contract.dtype == "timestamp" else ""
    return f"{low:.15g} ≤ {contract.dtype} ≤ {high:.15g}{unit}"


_WANTED: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int64": (int,),
    "float64": (int, float),
    "string": (str,),
    # As it comes from the wire, and as it is a feature: integer microseconds.
    "timestamp": (str, Ext, int),
}


def broken_limit(contract: FieldContract, value: object) -> str | None:
    """The limit that a value breaks, in words; None where it keeps the contract. An instant that
    is not parsed yet is judged by its type alone."""
    if value is None:
        return "a value, null is refused" if contract.missing == "reject" else None
    if type(value) not in _WANTED[contract.dtype]:
        return f"the type {contract.dtype}"
    if contract.values is not UNSET and value not in contract.values:
        return "one of " + ", ".join(contract.values)
    if contract.characters_max is not UNSET and len(str(value)) > contract.characters_max:
        return f"at most {contract.characters_max} characters"
    if isinstance(value, int | float) and contract.dtype != "bool":
        return _broken_bounds(contract, value)
    return None


def _broken_bounds(contract: FieldContract, value: float) -> str | None:
    if math.isnan(value):
        return "a number" if contract.missing == "reject" else None
    if contract.dtype != "float64" and not INT64[0] <= value <= INT64[1]:
        return "64 bits"
    if contract.range is UNSET:
        return None
    low, high = bounds(contract)
    return None if low <= value <= high else range_limit(contract)
