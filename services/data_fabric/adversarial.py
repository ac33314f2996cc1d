"""Requests made to tell two implementations of a view apart, all within the view's contract.

Nulls, signed zeros, infinities, integer extremes, empty and Unicode texts, leap days, hours in
which clocks change, bounds of years; and instants exactly at, one microsecond before and after
what the relations hold, and their shifts, under keys that exist. The same seed gives the same rows.
"""

import math
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from contracts.features import FieldContract, ViewHeader
from contracts.types import UNSET
from services.data_fabric.field_rules import instant_range, int_range
from services.data_fabric.online import Index
from services.data_fabric.zones import FIRST_US, LAST_US, instant_us, is_zone, periods_at

_TEXTS = (
    "", " ", "a", "A", "Ä", "ß", "é", "e\u0301", "日本", "🛫", "'", '"', "\\", "%", "NULL", "nan",
    "0", "-1", "\u00a0", "\ufeff", "x" * 4_096,
)  # fmt: skip
_INTEGERS = (0, 1, -1, 7, 59, 60, 99, 100, 2**31 - 1, -(2**31), 2**53, 2**53 + 1, 2**63 - 1)
_FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.1, 1 / 3, 5e-324, 2.2250738585072014e-308, 1e17, float(2**53) + 2,
    1.7976931348623157e308, -1.7976931348623157e308, math.inf, -math.inf,
)  # fmt: skip
_ZONES = (
    "America/New_York", "Europe/London", "Australia/Lord_Howe", "America/St_Johns",
    "Pacific/Apia", "Asia/Kathmandu",
)  # fmt: skip
_YEARS = (1970, 2000, 2012, 2013, 2014, 2016, 2024, 2038, 2099, 2100)
_DAYS = ((1, 1), (2, 28), (3, 1), (12, 31))
_STEPS_US = (0, 0, -1, 1, -60_000_000, 60_000_000)
null_share = 0.08
hit_share = 0.7


class AdversarialRequests:
    """Draws rows for a view. `key_columns` maps an index to the request column behind each of its
    keys, where a key is such a column unchanged."""

    def __init__(
        self,
        header: ViewHeader,
        indexes: Sequence[Index],
        key_columns: Mapping[tuple[str, tuple[str, ...]], Sequence[str | None]],
        seed: int,
    ) -> None:
        self._random = random.Random(seed)
        self._header = header
        self._targets = [
            (index, key_columns.get((index.relation, index.keys), (None,) * len(index.keys)))
            for index in indexes
            if index.entries
        ]
        self._keys = [list(index.entries) for index, _ in self._targets]
        instants = self._instants(indexes)
        self._pools = {
            name: self._pool(name, contract, instants) for name, contract in header.request.items()
        }

    def row(self) -> dict[str, Any]:
        """One request; instants in integer microseconds."""
        row = {name: self._draw(name, contract) for name, contract in self._header.request.items()}
        if self._targets and self._random.random() < hit_share:
            self._aim(row)
        return row

    def _draw(self, name: str, contract: FieldContract) -> Any:
        if contract.missing == "null" and self._random.random() < null_share:
            return None
        if self._random.random() < 0.5:
            return self._random.choice(self._pools[name])
        return self._anywhere(contract, self._pools[name])

    def _anywhere(self, contract: FieldContract, pool: list[Any]) -> Any:
        if contract.dtype == "int64":
            return self._random.randint(*int_range(contract))
        if contract.dtype == "timestamp":
            low, high = instant_range(contract) or (FIRST_US, LAST_US)
            return self._random.randint(max(low, FIRST_US), min(high, LAST_US))
        if contract.dtype == "float64" and contract.range is not UNSET:
            return self._random.uniform(*contract.range)
        return self._random.choice(pool)

    def _aim(self, row: dict[str, Any]) -> None:
        """Make a row hit an entry of an index, near one of its times."""
        at = self._random.randrange(len(self._targets))
        index, columns = self._targets[at]
        key = self._random.choice(self._keys[at])
        for column, value in zip(columns, key if len(index.keys) > 1 else (key,), strict=True):
            if column is not None and self._allows(column, value):
                row[column] = value
        if index.time is not None:
            times = index.entries[key][0]
            shift = self._random.choice((0, *index.shifts))
            moment = times[self._random.randrange(1, len(times))] + shift
            moment += self._random.choice(_STEPS_US)
            if self._allows(self._header.event_time, moment):
                row[self._header.event_time] = moment

    def _allows(self, name: str, value: Any) -> bool:
        return value in self._filtered(self._header.request[name], [value])

    def _pool(self, name: str, contract: FieldContract, instants: list[int]) -> list[Any]:
        candidates: list[Any]
        if contract.dtype == "bool":
            candidates = [False, True]
        elif contract.dtype == "int64":
            low, high = int_range(contract)
            candidates = [*_INTEGERS, low, low + 1, high, high - 1]
        elif contract.dtype == "float64":
            bounds = () if contract.range is UNSET else contract.range
            candidates = [*_FLOATS, *bounds]
        elif contract.dtype == "timestamp":
            low, high = instant_range(contract) or (FIRST_US, LAST_US)
            candidates = [*instants, low, low + 1, high, high - 1]
        else:
            vocabulary = [] if contract.values is UNSET else contract.values
            candidates = [*_TEXTS, *vocabulary]
        pool = self._filtered(contract, candidates)
        assert pool, f"{name}: the contract of a column allows some value"
        return pool

    @staticmethod
    def _filtered(contract: FieldContract, values: list[Any]) -> list[Any]:
        if contract.dtype == "timestamp":
            low, high = instant_range(contract) or (FIRST_US, LAST_US)
            low, high = max(low, FIRST_US), min(high, LAST_US)
            return [value for value in values if low <= value <= high]
        if contract.dtype == "string":
            if contract.values is not UNSET:
                return [value for value in values if value in contract.values]
            longest = 65_536 if contract.characters_max is UNSET else contract.characters_max
            return [value for value in values if len(value) <= longest]
        if contract.dtype == "int64":
            low, high = int_range(contract)
            return [value for value in values if low <= value <= high]
        if contract.dtype == "float64" and contract.range is not UNSET:
            return [value for value in values if contract.range[0] <= value <= contract.range[1]]
        return values

    def _instants(self, indexes: Sequence[Index]) -> list[int]:
        zones = {*_ZONES, *_zones_in(indexes)}
        found = [
            instant_us(datetime(year, month, day, tzinfo=UTC))
            for year in _YEARS
            for month, day in _DAYS
        ]
        for zone in sorted(zones):
            for year in _YEARS:
                found += periods_at(zone, instant_us(datetime(year, 7, 1, tzinfo=UTC)))[0][1:]
        return [moment + step for moment in found for step in (-1, 0, 1, 1_800_000_000)]


def _zones_in(indexes: Sequence[Index]) -> set[str]:
    """Texts in keyed relations that name a zone; the request's clock may be read in them."""
    found: set[str] = set()
    for index in indexes:
        if index.time is None:
            texts = {value for row in index.entries.values() for value in row if type(value) is str}
            found |= {text for text in texts if "/" in text and is_zone(text)}
    return found
