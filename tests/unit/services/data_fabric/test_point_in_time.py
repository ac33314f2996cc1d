"""Nothing from after the request: which joins, windows and groups are refused, and where."""

import pytest

from services.data_fabric.lint import check_plan
from services.data_fabric.plan import bind
from services.data_fabric.refusal import ViewRefused
from services.data_fabric.sql import parse
from tests.unit.services.data_fabric.plans import SCHEMAS, changed, line_of, plan_of

ASOF_NOW = "ASOF LEFT JOIN by_station AS now ON now.station = r.station AND now.ended_at < r.at"
WINDOW = "WINDOW ended AS (PARTITION BY station ORDER BY ended_at)"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (ASOF_NOW, "LEFT JOIN by_station AS now ON now.station = r.station", "is a history"),
        (ASOF_NOW, ASOF_NOW.replace("< r.at", "<= r.at"), "use <"),
        (ASOF_NOW, ASOF_NOW.replace("< r.at", "> r.at"), "compare a column"),
        (ASOF_NOW, ASOF_NOW.replace("< r.at", "< r.at + INTERVAL 1 HOUR"), "may show what came"),
        (ASOF_NOW, ASOF_NOW.replace("< r.at", "< v.ended_at"), "may show what came"),
        (ASOF_NOW, ASOF_NOW.replace("ASOF LEFT", "ASOF"), "so that no row is lost"),
        (ASOF_NOW, ASOF_NOW.replace("ASOF LEFT", "LEFT"), "one time of the relation"),
        ("LEFT JOIN stations AS s ON s.station = r.station",
         "JOIN stations AS s ON s.station = r.station", "so that no row is lost"),
        ("LEFT JOIN stations AS s ON s.station = r.station", "CROSS JOIN stations AS s",
         "so that no row is lost"),
        ("LEFT JOIN stations AS s ON s.station = r.station",
         "LEFT JOIN stations AS s ON s.station < r.station", "compares keys by ="),
        ("LEFT JOIN stations AS s ON s.station = r.station",
         "LEFT JOIN stations AS s ON s.station = r.station "
         "LEFT JOIN request AS q ON q.station = r.station", "sees other requests"),
        ("FROM seen AS s", "FROM seen AS s WHERE s.weight > 1e0", "WHERE loses rows"),
        ("FROM seen AS s", "FROM seen AS s LIMIT 5", "LIMIT loses rows"),
        ("FROM seen AS s", "FROM seen AS s ORDER BY hour", "has the request's order"),
        ("CAST(s.trips_1d AS BIGINT)", "CAST(count(*) OVER () AS BIGINT)",
         "not in a query over the request"),
        ("CAST(s.trips_1d AS BIGINT)", "CAST((SELECT max(opened) FROM stations) AS BIGINT)",
         "not in a query over the request"),
        (WINDOW, "WINDOW ended AS (PARTITION BY station)", "ascending instant first"),
        (WINDOW, WINDOW.replace("ended_at)", "ended_at DESC)"), "ascending instant first"),
        (WINDOW, WINDOW.replace("ended_at)", "distance_km)"), "ascending instant first"),
        (WINDOW, WINDOW.replace("ended_at)", "ended_at RANGE BETWEEN UNBOUNDED PRECEDING AND "
                                "UNBOUNDED FOLLOWING)"), "sees the future"),
        (WINDOW, WINDOW.replace("ended_at)", "ended_at ROWS BETWEEN UNBOUNDED PRECEDING AND "
                                "CURRENT ROW)"), "use RANGE"),
        ("CAST(count(*) OVER ended AS BIGINT)", "CAST(lead(vehicle) OVER ended AS BIGINT)",
         "from the future"),
        ("CAST(count(*) OVER ended AS BIGINT)", "CAST(lag(vehicle) OVER ended AS BIGINT)",
         "needs an order that is unique"),
        ("GROUP BY vehicle, ended_at", "GROUP BY vehicle, ended_at LIMIT 9", "what comes later"),
        ("SELECT vehicle, ended_at FROM trips WHERE vehicle IS NOT NULL GROUP BY vehicle, ended_at",
         "SELECT vehicle, max(ended_at) AS ended_at FROM trips GROUP BY vehicle",
         "GROUP BY an instant"),
        ("SELECT vehicle, ended_at FROM trips WHERE vehicle IS NOT NULL GROUP BY vehicle, ended_at",
         "SELECT t.vehicle, t.ended_at FROM trips AS t "
         "LEFT JOIN trips AS u ON u.vehicle = t.vehicle", "a join can reach later rows"),
        ("FROM trips WHERE vehicle IS NOT NULL",
         "FROM trips WHERE distance_km > (SELECT avg(distance_km) FROM trips)",
         "no query inside a history"),
    ],
)  # fmt: skip
def test_what_may_leak_or_lose_rows_is_refused(old: str, new: str, reason: str) -> None:
    """Each rule names the place; the line is that of the changed text."""
    text = changed(old, new)
    with pytest.raises(ViewRefused) as refused:
        check_plan(plan_of(text))
    found = [finding for finding in refused.value.findings if reason in finding.reason]
    assert found, refused.value
    line = line_of(text, new)
    assert any(abs(finding.line - line) <= 16 for finding in found), (line, found)


def test_a_source_that_is_only_named_is_refused() -> None:
    """Nothing of it would be read."""
    text = changed(
        "SELECT vehicle, ended_at FROM trips WHERE vehicle IS NOT NULL GROUP BY vehicle, ended_at",
        "SELECT 1 AS vehicle, CAST(NULL AS TIMESTAMPTZ) AS ended_at FROM stations_2",
    )
    with pytest.raises(ViewRefused, match="reads no column of stations_2"):
        bind(parse(text), {**SCHEMAS, "stations_2": {"station": "string"}})
