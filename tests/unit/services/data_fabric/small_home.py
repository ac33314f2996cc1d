"""A home with a small view, for tests of the data fabric: trips of vehicles between stations."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

START = datetime(2024, 3, 1, tzinfo=UTC)
INSTANT = pa.timestamp("us", tz="UTC")
TRIPS = pa.schema(
    [("started_at", INSTANT), ("ended_at", INSTANT), ("station", pa.string()),
     ("vehicle", pa.int64()), ("distance_km", pa.float64())]
)  # fmt: skip
STATIONS = pa.schema([("station", pa.string()), ("zone", pa.string()), ("opened", pa.int64())])
HEADER = """/* mortise
name = "trip"
version = "1"
entity = "vehicle"
event_time = "at"
freshness_s = 3600
owner = "trip data owner"

[request.at]
dtype = "timestamp"
source = "caller"
[request.station]
dtype = "string"
characters_max = 8
source = "caller"
[request.vehicle]
dtype = "int64"
range = [-5, 1000]
missing = "null"
source = "caller"
[request.weight]
dtype = "float64"
missing = "null"
source = "caller"

[fields.hour]
dtype = "int64"
range = [0, 23]
missing = "null"
source = "at on the station's clock"
[fields.trips_1d]
dtype = "int64"
range = [0, 100000]
source = "trips"
[fields.mean_km_1d]
dtype = "float64"
missing = "null"
source = "trips"
[fields.weight_class]
dtype = "string"
values = ["light", "heavy", "unknown"]
source = "weight"
[fields.last_end]
dtype = "timestamp"
missing = "null"
source = "trips.ended_at of the vehicle"
[fields.is_known]
dtype = "bool"
source = "trips"
*/
"""
QUERY = """
WITH by_station AS (
    SELECT
        station,
        ended_at,
        CAST(count(*) OVER ended AS BIGINT) AS trips,
        CAST(sum(distance_km) OVER ended AS DOUBLE) AS km
    FROM trips
    WINDOW ended AS (PARTITION BY station ORDER BY ended_at)
),
by_vehicle AS (
    SELECT vehicle, ended_at FROM trips WHERE vehicle IS NOT NULL GROUP BY vehicle, ended_at
),
seen AS (
    SELECT
        r.at,
        r.weight,
        timezone(s.zone, r.at) AS clock,
        v.ended_at AS last_end,
        coalesce(now.trips, 0) - coalesce(ago.trips, 0) AS trips_1d,
        CAST(coalesce(now.km, 0e0) - coalesce(ago.km, 0e0) AS DOUBLE) AS km_1d
    FROM request AS r
    LEFT JOIN stations AS s ON s.station = r.station
    ASOF LEFT JOIN by_vehicle AS v ON v.vehicle = r.vehicle AND v.ended_at < r.at
    ASOF LEFT JOIN by_station AS now ON now.station = r.station AND now.ended_at < r.at
    ASOF LEFT JOIN by_station AS ago
        ON ago.station = r.station AND ago.ended_at < r.at - INTERVAL 1 DAY
)
SELECT
    CAST(hour(s.clock) AS BIGINT) AS hour,
    CAST(s.trips_1d AS BIGINT) AS trips_1d,
    CAST(s.km_1d / nullif(s.trips_1d, 0) AS DOUBLE) AS mean_km_1d,
    CAST(
        CASE WHEN s.weight IS NULL THEN 'unknown' WHEN s.weight < 10e0 THEN 'light' ELSE 'heavy' END
        AS VARCHAR
    ) AS weight_class,
    CAST(s.last_end AS TIMESTAMPTZ) AS last_end,
    CAST(s.last_end IS NOT NULL AS BOOLEAN) AS is_known
FROM seen AS s
"""
VIEW = HEADER + QUERY
REQUEST = ("at", "station", "vehicle", "weight")


def at(hours: float) -> datetime:
    """An instant so many hours after the start."""
    return START + timedelta(hours=hours)


def trips(rows: Sequence[tuple[float, float, str, int | None, float | None]]) -> pa.Table:
    """Trips given as (started, ended, station, vehicle, km), times in hours after the start."""
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)] or [[]] * 5
    for times in columns[:2]:
        times[:] = map(at, times)
    return pa.Table.from_arrays(
        [pa.array(column, type_) for column, type_ in zip(columns, TRIPS.types, strict=True)],
        schema=TRIPS,
    )


SOME_TRIPS = trips(
    [
        (hour * 0.7, hour * 0.7 + 0.5, "ABC"[hour % 3], None if hour % 7 == 0 else hour % 11,
         None if hour % 13 == 0 else hour * 0.25)
        for hour in range(400)
    ]
)  # fmt: skip
SOME_STATIONS = pa.table(
    {
        "station": ["A", "B", "C"],
        "zone": ["America/New_York", "Europe/Berlin", None],
        "opened": [1990, 2000, None],
    },
    schema=STATIONS,
)
PATTERNS = {"trips": "data/trips-*.parquet", "stations": "data/stations.parquet"}


@dataclass(frozen=True)
class SmallHome:
    """A home directory with the small view and its sources."""

    path: Path

    @property
    def certificates(self) -> Path:
        """Where the home's certificates lie."""
        return self.path / ".mortise/fabric/certificates"

    @classmethod
    def create(cls, path: Path, *, view: str = VIEW, trips: pa.Table = SOME_TRIPS) -> "SmallHome":
        """Write the home's files; the trips in two shards."""
        for folder in ("data", "features", "models"):
            (path / folder).mkdir(parents=True, exist_ok=True)
        half = len(trips) // 2
        pq.write_table(trips.slice(0, half), path / "data/trips-1.parquet")
        pq.write_table(trips.slice(half), path / "data/trips-2.parquet")
        pq.write_table(SOME_STATIONS, path / "data/stations.parquet")
        (path / "features/trip.sql").write_text(view)
        tables = (
            f'[sources.{name}]\nkind = "parquet"\npath = "{pattern}"\n'
            for name, pattern in PATTERNS.items()
        )
        (path / "mortise.toml").write_text("home_version = 1\n" + "".join(tables))
        return cls(path)

    @property
    def sources(self) -> dict[str, Path]:
        """The sources as the offline path takes them."""
        return {name: self.path / pattern for name, pattern in PATTERNS.items()}


def request_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Requests as an Arrow table; an absent column is null."""
    types = (INSTANT, pa.string(), pa.int64(), pa.float64())
    return pa.table(
        {
            name: pa.array([row.get(name) for row in rows], type_)
            for name, type_ in zip(REQUEST, types, strict=True)
        }
    )
