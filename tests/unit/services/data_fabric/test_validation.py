"""Rows against their contract: good ones go on, bad ones are told field, limit and value."""

import math
from typing import Any

import msgpack
import msgspec
import pytest

from contracts.errors import MeshError
from contracts.features import FieldContract, ViewHeader
from contracts.limits import rows_per_request_max
from services.data_fabric.row_lists import row_count, slices
from services.data_fabric.validation import RowDecoder


def header(**columns: FieldContract) -> ViewHeader:
    """A header with these request columns beside the event time."""
    instant = FieldContract(dtype="timestamp", source="caller")
    return ViewHeader(
        name="v",
        version="1",
        entity="at",
        event_time="at",
        owner="owner",
        request={"at": instant, **columns},
        fields={},
    )


def column(dtype: str, **rules: Any) -> FieldContract:
    """A request column."""
    return FieldContract(dtype=dtype, source="caller", **rules)  # type: ignore[arg-type]


AT = "2024-01-01T00:00:00Z"


def decode(contract: FieldContract, *values: Any) -> list[Any]:
    """Each value as it comes out of the column `x`, or the details of its refusal."""
    rows = [{"at": AT, "x": value} for value in values]
    decoded = RowDecoder(header(x=contract)).decode(msgpack.packb(rows))
    found: list[Any] = [None] * len(values)
    for index, row in zip(decoded.indexes, decoded.rows, strict=True):
        found[index] = row.c1
    for refused in decoded.refused:
        assert refused.error.name == "FEATURE_INVALID"
        assert refused.error.details is not None
        assert refused.error.details["row"] == refused.row
        found[refused.row] = (refused.error.details["limit"], refused.error.details["value"])
    return found


def test_integers_keep_their_range_and_their_type() -> None:
    """Both ends belong to the range; a text, a float and a bool are no integers."""
    ranged = column("int64", range=(-5, 7))
    limit = "-5 ≤ int64 ≤ 7"
    assert decode(ranged, -5, 7, -6, 8) == [-5, 7, (limit, "-6"), (limit, "8")]
    wanted = "the type int64"
    assert decode(ranged, "1", 1.0, True) == [(wanted, "'1'"), (wanted, "1.0"), (wanted, "True")]


def test_integers_without_a_range_have_64_bits() -> None:
    """The extremes pass, one more does not."""
    found = decode(column("int64"), -(2**63), 2**63 - 1, 2**63)
    assert found == [-(2**63), 2**63 - 1, ("64 bits", str(2**63))]


def test_floats_take_integers_and_refuse_nan() -> None:
    """±0, infinity and integers are numbers; NaN is none and is refused, or stands for null."""
    found = decode(column("float64"), 0.0, -0.0, math.inf, 3, math.nan, "1")
    assert found[:4] == [0.0, 0.0, math.inf, 3.0]
    assert math.copysign(1, found[1]) == -1.0
    assert found[4:] == [("a number", "nan"), ("the type float64", "'1'")]
    assert decode(column("float64", missing="null"), math.nan, None) == [None, None]
    defaulted = column("float64", missing="default", default=2, range=(0, 5))
    assert decode(defaulted, math.nan, None, 9.0) == [2.0, 2.0, ("0 ≤ float64 ≤ 5", "9.0")]


def test_decimals_are_what_is_kept() -> None:
    """Rounded before either path sees the value."""
    assert decode(column("float64", decimals=2), 1.005, 2.999, -0.001) == [1.0, 3.0, -0.0]


def test_texts_keep_vocabulary_and_length() -> None:
    """Characters are counted, not bytes."""
    assert decode(column("string", characters_max=2), "🛫é", "abc") == [
        "🛫é",
        ("at most 2 characters", "'abc'"),
    ]
    limit = "one of EWR, JFK"
    assert decode(column("string", values=["EWR", "JFK"]), "JFK", "jfk", "") == [
        "JFK",
        (limit, "'jfk'"),
        (limit, "''"),
    ]


def test_null_and_absent_are_the_same() -> None:
    """Refused, passed on, or replaced, as the contract says."""
    for row in ({"at": AT, "x": None}, {"at": AT}):
        for rules, expected in (
            ({"missing": "null"}, None),
            ({"missing": "default", "default": "-"}, "-"),
        ):
            decoder = RowDecoder(header(x=column("string", **rules)))
            assert decoder.decode(msgpack.packb([row])).rows[0].c1 == expected
        decoder = RowDecoder(header(x=column("string")))
        refused = decoder.decode(msgpack.packb([row])).refused[0].error
        assert refused.details == {
            "row": 0, "field": "x", "limit": "a value, null is refused", "value": "None",
        }  # fmt: skip


def test_absent_and_unknown_columns_are_told_apart() -> None:
    """One reads "missing", and not as a value that was sent; the other names the known ones."""
    decoder = RowDecoder(header(x=column("string")))
    rows = [{"at": AT}, {"at": AT, "x": None}, {"at": AT, "x": "", "a": 1}]
    refused = decoder.decode(msgpack.packb(rows)).refused
    assert [one.error.message for one in refused] == [
        "row 0: column x is missing, its contract wants it",
        "row 1: x is None, its contract wants a value, null is refused",
        "row 2: unknown column a; the view has at, x",
    ]


def test_instants_keep_their_range() -> None:
    """The range of a timestamp is in seconds since 1970."""
    contract = column("timestamp", range=(0, 86_400))
    found = decode(contract, "1970-01-02T00:00:00Z", "1970-01-02T00:00:00.000001Z")
    assert found[0] == 86_400_000_000
    assert found[1][0] == "0 ≤ timestamp ≤ 86400 seconds since 1970"


def test_good_rows_go_on_beside_bad_ones() -> None:
    """Indexes are those of the request, whatever was wrong with the others."""
    decoder = RowDecoder(header(x=column("int64", range=(0, 9)), y=column("bool")))
    rows: list[Any] = [
        {"at": AT, "x": 1, "y": True},
        {"at": AT, "x": 10, "y": True},
        {"at": AT, "x": 2, "y": False, "z": 0},
        "not a row",
        {"at": "today", "x": 3, "y": True},
        {"at": AT, "x": 4, "y": False},
        {"at": AT, "x": 5},
        {7: 8},
    ]
    decoded = decoder.decode(msgpack.packb(rows))
    assert [row.c1 for row in decoded.rows] == [1, 4]
    assert list(decoded.indexes) == [0, 5]
    fields = {refused.row: refused.error.details["field"] for refused in decoded.refused}  # type: ignore[index]
    assert fields == {1: "x", 2: "z", 3: "row", 4: "at", 6: "y", 7: "7"}
    assert [msgpack.unpackb(raw) for raw in decoded.raws()] == [rows[0], rows[5]]
    assert msgpack.unpackb(decoded.refused[0].raw) == rows[1]


def test_a_long_value_is_cut_in_the_message() -> None:
    """An error stays short, whatever was sent."""
    refused = decode(column("string", characters_max=2), "x" * 100_000)[0]
    assert len(refused[1]) < 100


@pytest.mark.parametrize(
    "encoded",
    [b"\x81\xa1x\x01", b"\xc0", b"\x91", b"\x91\xc1", b"", msgpack.packb(7),
     msgpack.packb([{}] * (rows_per_request_max + 1))],
)  # fmt: skip
def test_what_is_no_list_of_rows_is_an_invalid_request(encoded: bytes) -> None:
    """Also a list that is cut off or too long."""
    with pytest.raises(MeshError, match="INVALID_REQUEST"):
        RowDecoder(header()).decode(encoded)


def test_rows_can_be_decoded_in_slices() -> None:
    """Slices hold every row once, numbered on."""
    rows = [{"at": AT, "x": at} for at in range(10)]
    raw = msgpack.packb(rows)
    decoder = RowDecoder(header(x=column("int64", range=(0, 8))))
    parts = [decoder.decode(part, at * 4) for at, part in enumerate(slices(raw, 4))]
    assert [index for part in parts for index in part.indexes] == list(range(9))
    assert parts[2].refused[0].row == 9


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_the_count_of_rows_is_read_off_the_head(count: int) -> None:
    """Each form of a MessagePack list."""
    assert row_count(msgspec.Raw(msgpack.packb([0] * count))) == count
    assert row_count(b"\xc0") == 0
