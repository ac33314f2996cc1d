"""What a view's SQL must not say: each refusal with its line and its reason."""

import pytest

from services.data_fabric.lint import check_plan
from services.data_fabric.refusal import ViewRefused
from tests.unit.services.data_fabric.plans import changed, line_of, plan_of

HOUR = "CAST(hour(s.clock) AS BIGINT) AS hour"
MEAN = "CAST(s.km_1d / nullif(s.trips_1d, 0) AS DOUBLE) AS mean_km_1d"


def test_the_small_view_is_clean() -> None:
    """A view that follows the rules has no finding."""
    check_plan(plan_of())


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (HOUR, "CAST(s.trips_1d / 2 AS BIGINT) AS hour", "CAST one AS DOUBLE"),
        (MEAN, "CAST(s.km_1d / s.trips_1d AS DOUBLE) AS mean_km_1d", "wrap it in NULLIF"),
        (HOUR, "CAST(s.trips_1d % s.trips_1d AS BIGINT) AS hour", "wrap it in NULLIF"),
        (HOUR, "CAST(s.trips_1d // 0 AS BIGINT) AS hour", "wrap it in NULLIF"),
        (HOUR, "CAST(s.km_1d AS BIGINT) AS hour", "use FLOOR first"),
        (HOUR, "CAST(dayofweek(s.clock) AS BIGINT) AS hour", "use isodow"),
        (HOUR, "CAST(extract(dow FROM s.clock) AS BIGINT) AS hour", "ISODOW"),
        (HOUR, "CAST(weekday(s.clock) AS BIGINT) AS hour", "use isodow"),
        ("10e0", "10.5", "decimal in one engine"),
        (HOUR, "hour(s.clock) AS hour", "explicit CAST"),
        (HOUR, "CAST(hour(s.clock) AS INTEGER) AS hour", "CAST to BIGINT"),
        (HOUR, "TRY_CAST(hour(s.clock) AS BIGINT) AS hour", "hides values"),
        (HOUR, "CAST(hour(s.clock) AS BIGINT) AS hours", "same names, same order"),
        (HOUR, "CAST(greatest(s.trips_1d, 1) AS BIGINT) AS hour", "treat nulls differently"),
        (HOUR, "CAST(least(s.trips_1d, 1) AS BIGINT) AS hour", "treat nulls differently"),
        (MEAN, "CAST(log(2, s.km_1d) AS DOUBLE) AS mean_km_1d", "its base"),
        ("CAST(s.km_1d", "CAST(length(substr('a', 0)) + s.km_1d", "start below 1"),
        ("'heavy' END", "upper('heavy') END", "beyond ASCII"),
        ("CAST(sum(distance_km) OVER ended AS DOUBLE) AS km", "sum(distance_km) OVER ended AS km",
         "outgrows its type"),
        (HOUR, "CAST(hour(now()) AS BIGINT) AS hour", "depends on the request"),
        (HOUR, "CAST(hour(current_timestamp) AS BIGINT) AS hour", "depends on the request"),
        (HOUR, "CAST(extract(year FROM current_date) AS BIGINT) AS hour", "depends on the request"),
        (MEAN, "CAST(random() AS DOUBLE) AS mean_km_1d", "depends on the request"),
        (MEAN, "CAST(length(repeat('x', 2000000000)) AS DOUBLE) AS mean_km_1d",
         "not on the list"),
        (MEAN, "CAST(getvariable('x') AS DOUBLE) AS mean_km_1d", "not on the list"),
        ("SELECT vehicle, ended_at FROM trips", "SELECT * FROM trips", "name its columns"),
    ],
)  # fmt: skip
def test_what_would_differ_is_refused_with_line_and_reason(old: str, new: str, reason: str) -> None:
    """Each rule of the list, on the one line that breaks it."""
    text = changed(old, new)
    with pytest.raises(ViewRefused) as refused:
        check_plan(plan_of(text))
    found = [finding for finding in refused.value.findings if reason in finding.reason]
    assert found, refused.value
    first = line_of(text, new)
    assert any(first <= finding.line <= first + new.count("\n") + 1 for finding in found), found


def test_every_finding_is_told_at_once_in_order() -> None:
    """An author sees all that is wrong, top to bottom."""
    text = changed(HOUR, "hour(s.clock) AS hour").replace("10e0", "10.5")
    with pytest.raises(ViewRefused) as refused:
        check_plan(plan_of(text))
    lines = [finding.line for finding in refused.value.findings]
    assert len(lines) >= 2
    assert lines == sorted(lines)
    assert str(refused.value).startswith(f"line {lines[0]}: ")


def test_a_column_that_no_source_has_is_refused() -> None:
    """A misspelt column is found before the engine sees the text."""
    with pytest.raises(ViewRefused, match="does not fit the sources"):
        plan_of(changed("s.zone", "s.zonne"))
