"""The flights view on planted data: nothing from after the scheduled departure reaches a feature.

Requests of one morning, a past, and futures planted beside it that would change every feature if
they were seen: flights that land later the same day, flights that depart later, weather observed
at or after the departure. Both paths are asked with and without them.
"""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.data_fabric.loading import LoadedView, Loader
from services.data_fabric.offline import features
from services.data_fabric.outcome import Evaluator
from services.data_fabric.validation import RowDecoder
from shared.clock import SYSTEM
from tests.unit.services.data_fabric.loaded import with_few_rows

EXAMPLE = Path(__file__).parents[3] / "examples/flights"
VIEW = (EXAMPLE / "features/departure.sql").read_text()
PATTERNS = {name: f"{name}.parquet" for name in ("flights", "weather", "planes", "airports")}
INSTANT = pa.timestamp("us", tz="UTC")
FLIGHTS = pa.schema(
    [("scheduled_at", INSTANT), ("carrier", pa.string()), ("flight", pa.int16()),
     ("tailnum", pa.string()), ("origin", pa.string()), ("dest", pa.string()),
     ("distance_mi", pa.int16()), ("sched_dep_local", pa.int16()), ("dep_delay_min", pa.int16()),
     ("arr_delay_min", pa.int16()), ("air_time_min", pa.int16())]
)  # fmt: skip
WEATHER = ("temp", "dewp", "humid", "wind_speed", "wind_gust", "precip", "pressure", "visib")
NOON = datetime(2013, 7, 15, 16, 0, tzinfo=UTC)
"""Noon in New York: the requests' scheduled departure."""


def flight(
    minutes_before: float, arr_delay: int | None, air_time: int | None = 100, dep_delay: int = 0
) -> dict[str, Any]:
    """A flight of the requests' carrier, route and aircraft; known at departure + delay + air
    time + 60 minutes."""
    at = NOON - timedelta(minutes=minutes_before)
    local = at - timedelta(hours=4)
    return {
        "scheduled_at": at, "carrier": "UA", "flight": 1, "tailnum": "N1", "origin": "EWR",
        "dest": "IAH", "distance_mi": 1400, "sched_dep_local": local.hour * 100 + local.minute,
        "dep_delay_min": dep_delay, "arr_delay_min": arr_delay, "air_time_min": air_time,
    }  # fmt: skip


def weather(minutes_before: float, value: float) -> dict[str, Any]:
    """One observation at Newark."""
    at = NOON - timedelta(minutes=minutes_before)
    values = dict.fromkeys(WEATHER, value) | {"precip": value / 100, "pressure": 900 + value}
    return {"origin": "EWR", "observed_at": at, **values}


PAST = [
    flight(161, 20), flight(1_440, 0), flight(1_500, None, None), flight(10_000, 90),
    flight(40_000, 5), flight(130_000, 30),
]  # fmt: skip
PAST_WEATHER = [weather(30, 50.0), weather(90, 40.0)]
REQUESTS = [
    {
        "scheduled_at": NOON, "carrier": "UA", "flight": 5, "tailnum": "N1", "origin": "EWR",
        "dest": "IAH", "distance_mi": 1400, "sched_dep_local": 1200,
    },
    {
        "scheduled_at": NOON - timedelta(minutes=1), "carrier": "UA", "flight": 6, "tailnum": None,
        "origin": "EWR", "dest": "BQN", "distance_mi": 1585, "sched_dep_local": 1159,
    },
]  # fmt: skip


class Home:
    """A home with the flights view over planted flights and weather."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("planes", "airports"):
            shutil.copyfile(EXAMPLE / f"data/{name}.parquet", path / f"{name}.parquet")

    def both(
        self, flights: list[dict[str, Any]], observed: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The requests' features, after both paths agreed on them."""
        pq.write_table(pa.Table.from_pylist(flights, FLIGHTS), self.path / "flights.parquet")
        schema = pa.schema([("origin", pa.string()), ("observed_at", INSTANT),
                            *((name, pa.float64()) for name in WEATHER)])  # fmt: skip
        pq.write_table(pa.Table.from_pylist(observed, schema), self.path / "weather.parquet")
        view = Loader(self.path, PATTERNS, self.path / "certificates", SYSTEM).load(VIEW)
        found = online(view)
        sources = {name: self.path / pattern for name, pattern in PATTERNS.items()}
        request = pa.Table.from_pylist(REQUESTS, FLIGHTS)
        assert features(VIEW, sources, request).to_pylist() == found
        return found


def online(view: LoadedView) -> list[dict[str, Any]]:
    """The compiled path's features of the requests."""
    assert view.closure is not None, view.reason
    raw = msgpack.packb(
        [{**row, "scheduled_at": row["scheduled_at"].isoformat()} for row in REQUESTS]  # type: ignore[attr-defined]
    )
    outcome = Evaluator(view.header, RowDecoder(view.header)).evaluate(raw, view.closure)
    assert not outcome.refused
    return [dict(zip(view.header.fields, row, strict=False)) for row in outcome.rows]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty home."""
    with_few_rows(monkeypatch)
    return Home(tmp_path)


def test_the_past_is_counted(home: Home) -> None:
    """By hand: of five outcomes known within 90 days three are late, and the weather is that of
    11:30; what became known before 90 days is not counted."""
    first = home.both(PAST, PAST_WEATHER)[0]
    assert first["carrier_count_90d"] == 5
    assert first["carrier_late_rate_90d"] == 2 / 5
    assert (first["route_count_14d"], first["origin_count_3h"]) == (4, 1)
    assert first["aircraft_last_delay_min"] == 20
    assert (first["temp"], first["weather_age_min"]) == (50.0, 30)
    assert (first["hour_local"], first["dest_hour_local"], first["zone_shift_min"]) == (12, 11, -60)


FUTURE = [
    flight(161, 999, air_time=102),  # departed this morning, known a minute after noon
    flight(161, 999, dep_delay=2),  # a short flight that departed late
    flight(160, 999),  # known at noon sharp
    flight(419, None, None),  # cancelled this morning, counts as known after seven hours
    flight(0, 999),  # departs at noon
    flight(-1_440, 999),
    flight(-525_600, 999),
]
FUTURE_WEATHER = [weather(0, 99.0), weather(-1, 99.0), weather(-60, 99.0)]


def test_no_planted_future_changes_a_feature(home: Home) -> None:
    """Same-day flights that had not landed, later flights, later weather: on both paths, for both
    requests, every feature stays."""
    before = home.both(PAST, PAST_WEATHER)
    assert home.both(PAST + FUTURE, PAST_WEATHER + FUTURE_WEATHER) == before


def test_a_planted_past_does_change_them(home: Home) -> None:
    """The proof above can fail: what is known a minute before noon is seen."""
    before = home.both(PAST, PAST_WEATHER)[0]
    seen = home.both([*PAST, flight(161, 77)], [*PAST_WEATHER, weather(1, 60.0)])[0]
    assert seen["carrier_count_14d"] == before["carrier_count_14d"] + 1
    assert seen["aircraft_last_delay_min"] == 77
    assert seen["temp"] == 60.0


def test_weather_older_than_six_hours_is_unknown(home: Home) -> None:
    """At six hours it counts, a minute later it does not; no weather at all is unknown too."""
    assert home.both(PAST, [weather(360, 40.0)])[0]["temp"] == 40.0
    first, second = home.both(PAST, [weather(361, 40.0)])
    assert (first["temp"], first["weather_age_min"]) == (None, None)
    assert home.both(PAST, [])[0]["visib"] is None
    assert second["temp"] == 40.0


def test_the_view_has_enough_features_and_a_named_role_as_owner() -> None:
    """At least twenty, each with its source."""
    header_fields = VIEW.split("*/")[0].count("[fields.")
    assert header_fields >= 20
    assert 'owner = "flight data owner"' in VIEW
