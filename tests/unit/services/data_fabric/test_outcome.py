"""Both paths give the same features; refused rows beside good ones; how old the newest event is."""

import random
from dataclasses import replace

import pytest

from services.data_fabric.certificate import close, identical
from services.data_fabric.closure import Closure
from services.data_fabric.online import NEVER
from services.data_fabric.zones import ZoneUnknown
from tests.unit.services.data_fabric.loaded import load, offline, online, row_of
from tests.unit.services.data_fabric.small_home import VIEW, SmallHome, at, trips

HISTORY = trips(
    [(0, 1, "A", 7, 1.0), (1, 2, "A", 8, 2.0), (2, 30, "A", 7, 4.0), (3, 26, "B", 9, 8.0)]
)


def test_online_equals_offline(home: SmallHome) -> None:
    """Random requests, times at and around those of the history included."""
    draw = random.Random(5)
    rows = [
        {
            "at": at(draw.choice((hour * 0.7 + 0.5, draw.uniform(-5, 400)))),
            "station": draw.choice(("A", "B", "C", "", "🛫")),
            "vehicle": draw.choice((None, draw.randrange(-5, 14))),
            "weight": draw.choice((None, 0.0, 9.999, 10.0, 1e300)),
        }
        for hour in range(300)
    ]
    view = load(home)
    found, expected = online(view, rows).rows, offline(home, VIEW, rows)
    assert len(found) == len(expected) == 300
    for row, ours, theirs in zip(rows, found, expected, strict=True):
        for name, left, right in zip(view.header.fields, ours, theirs, strict=False):
            same = close if name == "mean_km_1d" else identical
            assert same(left, right), (name, row, left, right)


def test_a_window_holds_what_ended_within_it(home: SmallHome) -> None:
    """By hand: ends at 1, 2 and 30 h; asked at 25.5 h the first has left the day."""
    SmallHome.create(home.path, trips=HISTORY)
    view = load(home)
    row = {"at": at(25.5), "station": "A", "vehicle": 8, "weight": 1.0}
    features = online(view, [row]).rows[0]
    assert features[1:4] == (1, 2.0, "light")
    assert features[4] == row_of(view, {"at": at(2)}).c0
    assert features[-1] == row_of(view, {"at": at(2)}).c0


def test_freshness_is_that_of_the_row_with_the_oldest_news(home: SmallHome) -> None:
    """The newest event of each row counts; rows without any do not."""
    SmallHome.create(home.path, trips=HISTORY)
    view = load(home)
    quiet = {"at": at(10), "station": "A", "vehicle": None, "weight": None}
    fresh = {"at": at(2.5), "station": "A", "vehicle": 7, "weight": None}
    nothing = {"at": at(1), "station": "A", "vehicle": 7, "weight": None}
    assert online(view, [fresh]).freshness_s == 1_800
    assert online(view, [fresh, quiet, nothing]).freshness_s == 8 * 3_600
    outcome = online(view, [nothing])
    assert outcome.freshness_s is None
    assert outcome.rows[0][-1] == NEVER


def test_a_feature_that_breaks_its_contract_refuses_its_row(home: SmallHome) -> None:
    """Field, limit and value are those of the feature; the row's neighbours go on."""
    text = VIEW.replace("range = [0, 100000]", "range = [0, 1]")
    SmallHome.create(home.path, trips=HISTORY, view=text)
    rows = [
        {"at": at(hours), "station": station, "vehicle": None, "weight": None}
        for hours, station in ((2.5, "A"), (2.5, "B"), (1.5, "A"), (3.0, "A"))
    ]
    rows[1]["station"] = "far too long"
    outcome = online(load(home), rows)
    assert [row[1] for row in outcome.rows] == [1]
    refused = {one.row: (one.error.details or {})["field"] for one in outcome.refused}
    assert refused == {0: "trips_1d", 1: "station", 3: "trips_1d"}
    assert outcome.refused[0].error.message == (
        "row 0: trips_1d is 2, its contract wants 0 ≤ int64 ≤ 1"
    )


def test_what_cannot_be_computed_refuses_its_row_alone(
    home: SmallHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arithmetic that leaves what a double can hold, or a station in a zone that does not exist,
    is the row's fault, not the batch's."""
    view = load(home)
    right = view.closure
    assert right is not None

    def raising(row: object) -> tuple[object, ...]:
        if row.c2 == 3:  # type: ignore[attr-defined]
            raise ZoneUnknown("Mars/Olympus")
        return right.values(row)

    broken = replace(view, closure=Closure(raising, raising, ""))
    rows = [
        {"at": at(9), "station": "A", "vehicle": vehicle, "weight": None} for vehicle in (2, 3, 4)
    ]
    outcome = online(broken, rows)
    assert len(outcome.rows) == 2
    assert outcome.refused[0].row == 1
    assert "'Mars/Olympus' is no time zone" in outcome.refused[0].error.message
