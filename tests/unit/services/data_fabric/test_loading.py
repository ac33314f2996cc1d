"""A view loaded: compiled and certified, or on the engine with the reason; its lineage."""

import re

import msgspec
import pytest

from contracts.types import UNSET
from services.data_fabric import loading
from services.data_fabric.certificate import Certificate
from services.data_fabric.closure import Closure
from services.data_fabric.refusal import SourceRefused, ViewRefused
from services.data_fabric.sql import text_digest
from services.data_fabric.validation import RowDecoder
from shared.clock import SYSTEM
from tests.unit.services.data_fabric.loaded import encode, load, offline
from tests.unit.services.data_fabric.small_home import (
    SOME_TRIPS,
    VIEW,
    SmallHome,
    at,
    trips,
)

FLOOR = VIEW.replace("CAST(hour(s.clock) AS BIGINT) AS hour", "CAST(abs(-7) AS BIGINT) AS hour")
ROWS = [
    {"at": at(hours), "station": "ABCD"[int(hours) % 4], "vehicle": int(hours) % 12, "weight": w}
    for hours, w in ((1.0, None), (30.5, 9.5), (100.0, 10.0), (279.9, 0.0), (500.0, -1e300))
]


def test_a_view_is_compiled_certified_and_remembered(uncertified: SmallHome) -> None:
    """The second load finds the certificate and needs no comparison."""
    view = load(uncertified)
    assert (view.path, view.reason) == ("closure", "")
    assert view.digest == text_digest(VIEW)
    files = list((uncertified.certificates).iterdir())
    assert len(files) == 1
    certificate = msgspec.json.decode(files[0].read_bytes(), type=Certificate)
    assert (certificate.difference, certificate.adversarial) == ("", 500)
    assert view.lineage.certificate == certificate.digest()
    assert files[0].name == f"{certificate.key.removeprefix('sha256:')}.json"
    assert load(uncertified).lineage == view.lineage


def test_lineage_follows_the_sources_content(home: SmallHome) -> None:
    """Other rows are another data digest and another certificate; the code stays the same."""
    before = load(home).lineage
    SmallHome.create(home.path, trips=SOME_TRIPS.slice(0, 300))
    after = load(home).lineage
    assert before.feature_code == after.feature_code
    assert before.data != after.data
    assert before.certificate != after.certificate


def test_a_home_copied_elsewhere_has_the_same_lineage(home: SmallHome) -> None:
    """No path is in any digest."""
    other = SmallHome.create(home.path / "copy")
    for name in ("trips-1", "trips-2", "stations"):
        source = home.path / f"data/{name}.parquet"
        (other.path / f"data/{name}.parquet").write_bytes(source.read_bytes())
    assert load(other).lineage == load(home).lineage


def test_every_feature_names_its_source_columns(home: SmallHome) -> None:
    """Through windows, joins and steps."""
    columns = load(home).columns
    assert columns["hour"] == ["request.at", "request.station", "stations.station", "stations.zone"]
    assert columns["weight_class"] == ["request.weight"]
    assert columns["mean_km_1d"] == [
        "request.at", "request.station", "trips.distance_km", "trips.ended_at", "trips.station",
    ]  # fmt: skip
    assert columns["last_end"] == ["request.at", "request.vehicle", "trips.ended_at",
                                   "trips.vehicle"]  # fmt: skip


def test_source_files_are_listed_with_their_digests(home: SmallHome) -> None:
    """Paths are relative to the home."""
    rows = load(home).sources
    assert [row.path for row in rows] == [
        "data/stations.parquet", "data/trips-1.parquet", "data/trips-2.parquet",
    ]  # fmt: skip
    assert sum(row.rows for row in rows) == len(SOME_TRIPS) + 3
    assert rows[1].event_time_max is not UNSET


def test_a_view_outside_the_subset_runs_on_the_engine(home: SmallHome) -> None:
    """The reason names the expression; the features are the offline path's."""
    view = load(home, FLOOR)
    assert view.path == "engine"
    assert "ABS(-7)" in view.reason
    assert view.lineage.certificate is UNSET
    assert view.engine is not None
    decoded = RowDecoder(view.header).decode(encode(ROWS)).rows
    for _ in range(2):  # the prepared statement takes table after table
        found = view.engine.compute(decoded)
        assert [row[:-1] for row in found] == offline(home, FLOOR, ROWS)
    view.engine.close()


def test_a_closure_that_differs_is_not_used(
    uncertified: SmallHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wrong value in one feature keeps the view on the engine, and the verdict is kept."""
    compile_plan = loading.compile_plan

    def wrong(*arguments: object) -> Closure:
        right = compile_plan(*arguments)  # type: ignore[arg-type]

        def values(row: object) -> tuple[object, ...]:
            found = list(right.values(row))
            found[1] += found[1] > 0
            return tuple(found)

        return Closure(values=values, checked=right.checked, source=right.source)

    monkeypatch.setattr(loading, "compile_plan", wrong)
    view = load(uncertified)
    assert view.path == "engine"
    assert re.match(r"trips_1d: closure \d+, engine \d+, for \{'at'", view.reason), view.reason
    assert view.lineage.certificate is UNSET
    monkeypatch.setattr(loading, "compile_plan", compile_plan)
    assert load(uncertified).reason == view.reason


def test_a_tampered_certificate_is_made_anew(uncertified: SmallHome) -> None:
    """A file that is not byte for byte what its name says does not count."""
    digest = load(uncertified).lineage.certificate
    file = next((uncertified.certificates).iterdir())
    whole = file.read_bytes()
    for content in (whole.replace(b'"adversarial":500', b'"adversarial":501') + b" ", b"{}", b""):
        file.write_bytes(content)
        assert load(uncertified).lineage.certificate == digest
        assert file.read_bytes() == whole


def test_a_relation_that_is_not_single_valued_is_refused(home: SmallHome) -> None:
    """Two trips that end at one instant, with a value each: a look-up could find either."""
    text = VIEW.replace(
        "SELECT vehicle, ended_at FROM trips WHERE vehicle IS NOT NULL GROUP BY vehicle, ended_at",
        "SELECT vehicle, ended_at, distance_km FROM trips",
    ).replace("v.ended_at AS last_end,", "v.ended_at AS last_end,\n        v.distance_km AS km,")
    SmallHome.create(home.path, trips=trips([(0, 1, "A", 1, 1.0), (0.5, 1, "B", 1, 2.0)]))
    with pytest.raises(ViewRefused, match="by_vehicle has different rows"):
        load(home, text.replace("s.weight < 10e0", "s.km < 10e0"))


def test_a_source_that_the_home_lacks_is_refused(home: SmallHome) -> None:
    """By its name."""
    with pytest.raises(SourceRefused, match="there is no source stations"):
        loading.Loader(
            home.path, {"trips": "data/trips-*.parquet"}, home.path / "certificates", SYSTEM
        ).load(VIEW)
