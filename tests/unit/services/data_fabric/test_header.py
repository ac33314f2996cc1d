"""The contract header of a view: what it must say, and what is said about what it says wrongly."""

import pytest

from services.data_fabric.header import read_header
from services.data_fabric.refusal import ViewRefused
from tests.unit.services.data_fabric.small_home import HEADER


def test_a_header_is_read_in_order() -> None:
    """Names, defaults and the order of the fields are those of the text."""
    header = read_header(HEADER)
    assert (header.name, header.version, header.event_time) == ("trip", "1", "at")
    assert list(header.request) == ["at", "station", "vehicle", "weight"]
    assert list(header.fields)[:2] == ["hour", "trips_1d"]
    assert header.fields["hour"].range == (0.0, 23.0)
    assert header.window_s == 10.0


@pytest.mark.parametrize(
    ("old", "new", "line", "reason"),
    [
        ("/* mortise", "/* note", 1, "begins with a /* mortise"),
        ('name = "trip"', "name = trip", 2, "not TOML"),
        ('owner = "trip data owner"', "", 1, "missing required field `owner`"),
        ('owner = "', 'colour = "red"\nowner = "', 1, "unknown field `colour`"),
        ('event_time = "at"', 'event_time = "station"', 1, "no required timestamp"),
        ('entity = "vehicle"', 'entity = "driver"', 1, "no column of request"),
        ("range = [-5, 1000]", "range = [5, -5]", 16, "is empty"),
        ("range = [-5, 1000]", "range = [0.2, 0.8]", 16, "is empty"),
        ("range = [-5, 1000]", "range = [-inf, 0]", 16, "is not finite"),
        ('dtype = "timestamp"\nsource = "caller"', 'dtype = "timestamp"\nrange = [0, 1e10]\n'
         'source = "caller"', 9, "leaves the years"),
        ("characters_max = 8", 'values = ["A"]\ncharacters_max = 8', 12, "one of the two"),
        ("characters_max = 8", "range = [1, 2]", 12, "range does not apply to string"),
        ("characters_max = 8", "decimals = 2", 12, "decimals apply to float64"),
        ("characters_max = 8", 'zone = "UTC"', 12, "zone applies to timestamp"),
        ('dtype = "timestamp"\nsource = "caller"', 'dtype = "timestamp"\nzone = "Mars/Olympus"\n'
         'source = "caller"', 9, "no IANA time zone"),
        ("characters_max = 8", 'missing = "default"', 12, "go together"),
        ("characters_max = 8", 'missing = "default"\ndefault = 7', 12, "no string"),
        ("characters_max = 8", "values = []", 12, "values is empty"),
        ("[request.station]", "[request.Station]", 12, "lower-case"),
        ('missing = "null"\nsource = "at on', 'missing = "default"\ndefault = 1\nsource = "at on',
         26, "COALESCE"),
    ],
)  # fmt: skip
def test_a_wrong_header_is_refused_with_line_and_reason(
    old: str, new: str, line: int, reason: str
) -> None:
    """Each rule of the header names the line of the table that breaks it."""
    assert old in HEADER
    with pytest.raises(ViewRefused) as refused:
        read_header(HEADER.replace(old, new, 1))
    assert [found for found in refused.value.findings if reason in found.reason], refused.value
    assert refused.value.findings[0].line == line
