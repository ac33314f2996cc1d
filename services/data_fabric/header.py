"""The typed contract in a view's leading `/* mortise … */` comment.

Holds the reading and checking of the header alone; the query is `sql`'s.
"""

import math
import re
import tomllib

import msgspec

from contracts.features import FieldContract, ViewHeader
from contracts.types import UNSET
from services.data_fabric.config import features_max
from services.data_fabric.refusal import Finding, ViewRefused
from services.data_fabric.zones import FIRST_US, LAST_US, YEARS, is_zone
from shared.view_headers import COMMENT

_COLUMN = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_RANGED = ("int64", "float64", "timestamp")
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int64": (int,),
    "float64": (int, float),
    "string": (str,),
    "timestamp": (str,),
}


def read_header(text: str) -> ViewHeader:
    """The header of a view's text. Raises ViewRefused naming the line or the field."""
    match = COMMENT.match(text)
    if match is None:
        raise ViewRefused.of("a view begins with a /* mortise … */ comment", 1)
    offset = text.count("\n", 0, match.start(1))
    try:
        table = tomllib.loads(match.group(1))
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        line = offset + int(at.group(1)) if at else offset + 1
        raise ViewRefused.of(f"the header is not TOML: {error}", line) from error
    try:
        header = msgspec.convert(table, ViewHeader)
    except msgspec.ValidationError as error:
        raise ViewRefused.of(f"header: {error}", offset + 1) from error
    findings = [Finding(_line_of(text, place), reason) for place, reason in _check(header)]
    if findings:
        raise ViewRefused(findings)
    return header


def _line_of(text: str, place: str) -> int:
    at = text.find(f"[{place}]") if place else 0
    return text.count("\n", 0, at) + 1 if at >= 0 else 1


def _check(header: ViewHeader) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for role, columns in (("request", header.request), ("fields", header.fields)):
        if not 1 <= len(columns) <= features_max:
            found.append(("", f"{role}: 1..{features_max} columns, got {len(columns)}"))
        for name, contract in columns.items():
            place = f"{role}.{name}"
            if not _COLUMN.fullmatch(name):
                found.append((place, f"{place}: a column is lower-case letters, digits, _"))
            found += [(place, f"{place}: {reason}") for reason in _check_field(contract, role)]
    instant = header.request.get(header.event_time)
    if instant is None or instant.dtype != "timestamp" or instant.missing != "reject":
        found.append(("", f"event_time {header.event_time!r} is no required timestamp of request"))
    if header.entity not in header.request:
        found.append(("", f"entity {header.entity!r} is no column of request"))
    return found


def _check_field(contract: FieldContract, role: str) -> list[str]:
    found: list[str] = []
    if contract.range is not UNSET:
        low, high = contract.range
        if contract.dtype not in _RANGED:
            found.append(f"range does not apply to {contract.dtype}")
        if not (math.isfinite(low) and math.isfinite(high)):
            found.append(f"range [{low}, {high}] is not finite")
        elif low > high or (contract.dtype == "int64" and math.ceil(low) > math.floor(high)):
            found.append(f"range [{low}, {high}] is empty")
        elif contract.dtype == "timestamp" and not (
            FIRST_US <= low * 1e6 <= high * 1e6 <= LAST_US + 1
        ):
            found.append(f"range [{low}, {high}] leaves the years {YEARS[0]} to {YEARS[1]}")
    if contract.dtype != "string" and contract.values is not UNSET:
        found.append("values apply to strings")
    if contract.values is not UNSET and not contract.values:
        found.append("values is empty")
    if contract.dtype != "string" and contract.characters_max is not UNSET:
        found.append("characters_max applies to strings")
    elif contract.values is not UNSET and contract.characters_max is not UNSET:
        found.append("values and characters_max: one of the two")
    if contract.decimals is not UNSET and (contract.dtype != "float64" or role == "fields"):
        found.append("decimals apply to float64 columns of request; a feature rounds in its SQL")
    if contract.zone is not UNSET:
        if contract.dtype != "timestamp" or role == "fields":
            found.append("zone applies to timestamp columns of request")
        elif not is_zone(contract.zone):
            found.append(f"zone {contract.zone!r} is no IANA time zone")
    if (contract.missing == "default") != (contract.default is not UNSET):
        found.append('missing = "default" and default go together')
    elif contract.default is not UNSET:
        expected = _PYTHON_TYPES[contract.dtype]
        if type(contract.default) not in expected:
            found.append(f"default {contract.default!r} is no {contract.dtype}")
    if contract.missing == "default" and role == "fields":
        found.append("a feature takes its default in the SQL, with COALESCE")
    return found
