"""The contract at the entrance: a request's rows, decoded and checked field by field.

The whole request is decoded and checked at once by a struct generated from the contract. Only when
that fails is each row judged alone, so that good rows go on and each bad one is told its field,
its limit and its value.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.msgpack import Ext

from contracts.errors import MeshError
from contracts.features import FieldContract, ViewHeader
from contracts.limits import rows_per_request_max
from contracts.types import UNSET
from services.data_fabric.field_rules import (
    FieldRefused,
    broken_limit,
    instant_range,
    int_range,
    range_limit,
)
from services.data_fabric.instants import InstantParser, InstantRefused
from services.data_fabric.row_lists import split_rows

Fix = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that broke the contract, by its index in the request, and its bytes."""

    row: int
    error: MeshError
    raw: bytes


@dataclass(slots=True)
class Decoded:
    """The good rows, their numbers in the request, and the refused ones; `raw` is the list as it
    came, whose first row has the number `first`."""

    rows: list[Any]
    indexes: Sequence[int]
    refused: list[Refused]
    raw: msgspec.Raw | bytes
    first: int

    def raws(self) -> list[bytes]:
        """The bytes of each good row."""
        parts = split_rows(self.raw)
        return [bytes(parts[at - self.first]) for at in self.indexes]


class RowDecoder:
    """Decodes the rows of one view. A decoded row has the attribute `c<i>` for the i-th column of
    the header's request; instants are integer microseconds."""

    def __init__(self, header: ViewHeader) -> None:
        self._contracts = header.request
        self._parsers = {
            name: InstantParser(None if contract.zone is UNSET else contract.zone)
            for name, contract in header.request.items()
            if contract.dtype == "timestamp"
        }
        fields = [
            (f"c{at}", _field_type(contract), *_field_default(contract))
            for at, contract in enumerate(header.request.values())
        ]
        self._names = {f"c{at}": name for at, name in enumerate(header.request)}
        row_type = msgspec.defstruct(
            "Row",
            fields,
            rename=self._names,
            forbid_unknown_fields=True,
            kw_only=True,
            gc=False,
        )
        self._row = msgspec.msgpack.Decoder(row_type)
        self._rows = msgspec.msgpack.Decoder(
            Annotated[list[row_type], Meta(max_length=rows_per_request_max)]  # type: ignore[valid-type]
        )
        self._fixes = [
            fix
            for at, (name, contract) in enumerate(header.request.items())
            if (fix := self._fix(f"c{at}", name, contract)) is not None
        ]

    def decode(self, raw: msgspec.Raw | bytes, first: int = 0) -> Decoded:
        """The rows of an encoded list, numbered from `first`. Raises MeshError INVALID_REQUEST if
        it is no list, or longer than a request may be."""
        try:
            rows = self._rows.decode(raw)
            for row in rows:
                for fix in self._fixes:
                    fix(row)
        except (msgspec.ValidationError, FieldRefused):
            return self._decode_each(raw, first)
        except msgspec.DecodeError as error:
            raise MeshError("INVALID_REQUEST", f"rows: {error}") from error
        return Decoded(rows, range(first, first + len(rows)), [], raw, first)

    def _decode_each(self, raw: msgspec.Raw | bytes, first: int) -> Decoded:
        rows, indexes, refused = [], [], []
        for at, part in enumerate(split_rows(raw), first):
            try:
                row = self._decode_one(part)
            except FieldRefused as broken:
                refused.append(Refused(at, broken.error(at), bytes(part)))
            else:
                rows.append(row)
                indexes.append(at)
        return Decoded(rows, indexes, refused, raw, first)

    def _decode_one(self, part: msgspec.Raw) -> Any:
        try:
            row = self._row.decode(part)
        except msgspec.ValidationError as error:
            raise self._diagnose(part, str(error)) from error
        for fix in self._fixes:
            fix(row)
        return row

    def _diagnose(self, part: msgspec.Raw, reason: str) -> FieldRefused:
        """Which field of a refused row is to blame."""
        try:
            row = msgspec.msgpack.decode(part, ext_hook=Ext)
        except msgspec.MsgspecError:
            return FieldRefused("row", "text keys and plain values", reason)
        if not isinstance(row, dict):
            return FieldRefused("row", "a map of columns", row)
        for name in row:
            if name not in self._contracts:
                told = f"unknown column {name!s:.64}; the view has {', '.join(self._contracts)}"
                return FieldRefused(str(name), "a column of the view", row[name], told)
        for name, contract in self._contracts.items():
            value = row.get(name)
            if contract.dtype == "timestamp" and type(value) is int:
                return FieldRefused(name, "a MessagePack timestamp or RFC 3339 text", value)
            limit = broken_limit(contract, value)
            if limit is not None:
                told = "" if name in row else f"column {name} is missing, its contract wants it"
                return FieldRefused(name, limit, value, told)
        return FieldRefused("row", reason, row)

    def _fix(self, attribute: str, name: str, contract: FieldContract) -> Fix | None:
        """What a column needs beyond its decoded type, as a function on the row; or None."""
        if contract.dtype == "timestamp":
            return self._fix_instant(attribute, name, contract)
        if contract.dtype == "float64":
            return _fix_float(attribute, name, contract)
        if contract.missing == "default":
            return _fix_default(attribute, contract.default)
        return None

    def _fix_instant(self, attribute: str, name: str, contract: FieldContract) -> Fix:
        parse, limits = self._parsers[name], instant_range(contract)
        default = None if contract.default is UNSET else parse(contract.default)
        is_required = contract.missing == "reject"

        def fix(row: Any) -> None:
            value = getattr(row, attribute)
            if value is None and not is_required:
                setattr(row, attribute, default)
                return
            try:
                at_us = parse(value)
            except InstantRefused as refused:
                raise FieldRefused(name, str(refused), _shown(value)) from refused
            if limits is not None and not limits[0] <= at_us <= limits[1]:
                raise FieldRefused(name, range_limit(contract), _shown(value))
            setattr(row, attribute, at_us)

        return fix


def _field_type(contract: FieldContract) -> Any:
    plain: Any
    if contract.dtype == "timestamp":
        plain = str | Ext
    elif contract.dtype == "bool":
        plain = bool
    elif contract.dtype == "int64":
        low, high = int_range(contract)
        plain = Annotated[int, Meta(ge=low, le=high)]
    elif contract.dtype == "float64":
        plain = float
        if contract.range is not UNSET:
            plain = Annotated[float, Meta(ge=contract.range[0], le=contract.range[1])]
    elif contract.values is not UNSET:
        plain = Literal[tuple(contract.values)]
    elif contract.characters_max is not UNSET:
        plain = Annotated[str, Meta(max_length=contract.characters_max)]
    else:
        plain = str
    # NaN fails every range, but may stand for a missing value: it is judged by the fix.
    if contract.dtype == "float64" and contract.missing != "reject":
        plain = float
    return plain if contract.missing == "reject" else plain | None


def _field_default(contract: FieldContract) -> tuple[Any, ...]:
    if contract.missing == "reject":
        return ()
    return (None if contract.default is UNSET else contract.default,)


def _fix_default(attribute: str, default: object) -> Fix:
    def fix(row: Any) -> None:
        if getattr(row, attribute) is None:
            setattr(row, attribute, default)

    return fix


def _fix_float(attribute: str, name: str, contract: FieldContract) -> Fix:
    is_required = contract.missing == "reject"
    default = None if contract.default is UNSET else float(contract.default)  # type: ignore[arg-type]
    low, high = (-math.inf, math.inf) if contract.range is UNSET else contract.range
    decimals = None if contract.decimals is UNSET else contract.decimals

    def fix(row: Any) -> None:
        value = getattr(row, attribute)
        if value is None or value != value:
            if is_required:
                raise FieldRefused(name, "a number", value)
            setattr(row, attribute, default)
            return
        if not low <= value <= high:
            raise FieldRefused(name, range_limit(contract), value)
        if decimals is not None:
            setattr(row, attribute, round(value, decimals))

    return fix


def _shown(value: object) -> object:
    return bytes(value.data) if isinstance(value, Ext) else value
