"""Parsing a view: identity, sources, and errors with their line."""

import pytest

from services.data_fabric.config import view_bytes_max
from services.data_fabric.refusal import ViewRefused
from services.data_fabric.sql import parse, text_digest
from tests.unit.services.data_fabric.small_home import HEADER, VIEW


def test_sources_are_what_is_neither_request_nor_named_in_the_query() -> None:
    """Table expressions and the request are not sources."""
    assert parse(VIEW).sources == ("stations", "trips")


def test_comments_change_the_text_but_not_the_code() -> None:
    """The digest is over the bytes, the feature code over the parse tree."""
    one, other = parse(VIEW), parse(VIEW.replace("\nSELECT\n", "\n-- the result\nSELECT\n"))
    assert one.digest == text_digest(VIEW) != other.digest
    assert one.feature_code == other.feature_code


def test_another_query_has_another_code() -> None:
    """A changed constant is another feature."""
    assert parse(VIEW).feature_code != parse(VIEW.replace("10e0", "11e0")).feature_code


@pytest.mark.parametrize(
    ("query", "line", "reason"),
    [
        ("SELECT 1 AS a,\n  (2 AS b FROM request", 52, "cannot be parsed"),
        ("SELECT 1 AS a; SELECT 2 AS b", 0, "one SELECT"),
        ("DROP TABLE trips", 0, "one SELECT"),
        ("SELECT x AS a FROM read_parquet('/etc/x')", 51, "named plainly"),
        ("WITH request AS (SELECT x FROM trips) SELECT x FROM request", 51, "hides"),
        ("WITH trips AS (SELECT x FROM trips) SELECT x FROM trips", 51, "hides"),
        ("SELECT x AS a FROM other.trips", 51, "named plainly"),
        ("SELECT 1 AS a UNION SELECT 2", 0, "one SELECT"),
    ],
)
def test_what_is_no_query_is_refused(query: str, line: int, reason: str) -> None:
    """A view is one SELECT; a syntax error has its line in the file."""
    with pytest.raises(ViewRefused, match=reason) as refused:
        parse(HEADER + query)
    assert refused.value.findings[0].line == line


def test_a_text_that_is_too_long_is_refused_before_parsing() -> None:
    """The limit and the size are named."""
    with pytest.raises(ViewRefused, match=f"view_bytes_max is {view_bytes_max}"):
        parse(VIEW + "-" * view_bytes_max)
