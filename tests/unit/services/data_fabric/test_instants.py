"""Instants from the wire: exact to the microsecond, or refused with the limit."""

import struct
from datetime import UTC, datetime

import pytest
from msgspec.msgpack import Ext

from services.data_fabric.instants import InstantParser, InstantRefused
from services.data_fabric.zones import instant_us


def us(*parts: int) -> int:
    """Microseconds since 1970 of a UTC time."""
    return instant_us(datetime(*parts, tzinfo=UTC))  # type: ignore[arg-type,misc]


def stamp(seconds: int, nanoseconds: int = 0) -> Ext:
    """A MessagePack timestamp of the 96-bit form."""
    return Ext(-1, struct.pack(">Iq", nanoseconds, seconds))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2013-12-24T18:30:00Z", us(2013, 12, 24, 18, 30)),
        ("2013-12-24t18:30:00z", us(2013, 12, 24, 18, 30)),
        ("2013-12-24 18:30:00+00:00", us(2013, 12, 24, 18, 30)),
        ("2013-12-24T18:30:00-05:00", us(2013, 12, 24, 23, 30)),
        ("2013-12-24T23:30:00.000001-05:00", us(2013, 12, 25, 4, 30) + 1),
        ("2013-12-24T18:30:00.5+05:45", us(2013, 12, 24, 12, 45) + 500_000),
        ("2012-02-29T00:00:00Z", us(2012, 2, 29)),
        ("1900-01-01T00:00:00Z", us(1900, 1, 1)),
        ("2199-12-31T23:59:59.999999Z", us(2200, 1, 1) - 1),
        (stamp(0), 0),
        (stamp(-1, 999_999_000), -1),
        (Ext(-1, struct.pack(">I", 86_400)), 86_400_000_000),
        (Ext(-1, struct.pack(">Q", (1_000 << 34) | 5)), 5_000_001),
    ],
)
def test_an_instant_is_exact(value: object, expected: int) -> None:
    """Every form of both encodings; asked twice, because texts are remembered."""
    parse = InstantParser(None)
    assert (parse(value), parse(value)) == (expected, expected)


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        ("2013-12-24T18:30:00", "an offset"),
        ("2013-12-24", "RFC 3339"),
        ("20131224T183000Z", "RFC 3339"),
        ("2013-W52-2T18:30:00Z", "RFC 3339"),
        ("٢٠١٣-12-24T18:30:00Z", "RFC 3339"),
        ("2013-12-24T18:30:00.1234567Z", "six digits"),
        ("2013-02-29T00:00:00Z", "that exist"),
        ("2013-12-24T24:00:00Z", "that exist"),
        ("2013-12-24T18:30:60Z", "that exist"),
        ("2013-12-24T18:30:00+24:00", "that exist"),
        ("1899-12-31T23:59:59Z", "the years"),
        ("2200-01-01T00:00:00Z", "the years"),
        ("0000-01-01T00:00:00Z", "that exist"),
        ("", "RFC 3339"),
        (stamp(0, 1), "whole microseconds"),
        (stamp(0, 1_000_000_000), "less than a second"),
        (stamp(2**62), "the years"),
        (Ext(-1, b"\0"), "a MessagePack timestamp"),
        (Ext(5, b"\0\0\0\0"), "a MessagePack timestamp"),
        (5, "timestamp or RFC 3339"),
    ],
)
def test_what_is_no_instant_names_the_limit(value: object, limit: str) -> None:
    """Never rounded, never guessed."""
    with pytest.raises(InstantRefused, match=limit):
        InstantParser(None)(value)


def test_without_an_offset_the_contract_s_zone_counts() -> None:
    """Where the contract names a zone, and the clocks there show the time exactly once."""
    parse = InstantParser("America/New_York")
    assert parse("2013-12-24T18:30:00") == us(2013, 12, 24, 23, 30)
    assert parse("2013-12-24T18:30:00Z") == us(2013, 12, 24, 18, 30)
    for text in ("2013-11-03T01:30:00", "2013-03-10T02:30:00"):
        with pytest.raises(InstantRefused, match="exactly once"):
            parse(text)


def test_remembered_texts_do_not_reach_over_the_bounds() -> None:
    """A remembered day and a remembered offset together are still judged."""
    parse = InstantParser(None)
    parse("2199-06-01T23:00:00-10:00")
    with pytest.raises(InstantRefused, match="the years"):
        parse("2199-12-31T23:00:00-10:00")
