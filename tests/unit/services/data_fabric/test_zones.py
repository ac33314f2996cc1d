"""Clock time in zones, against the standard library."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from services.data_fabric.zones import (
    FIRST_US,
    LAST_US,
    from_clock,
    instant_us,
    is_zone,
    load_zone,
    periods_at,
    to_clock,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = ("America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC")


def clock_by_library(zone: str, at_us: int) -> int:
    """The local clock as the standard library tells it."""
    local = (EPOCH + timedelta(microseconds=at_us)).astimezone(load_zone(zone))
    return instant_us(local.replace(tzinfo=UTC))


@pytest.mark.parametrize("zone", ZONES)
def test_the_clock_is_the_library_s_everywhere(zone: str) -> None:
    """Random instants of three centuries, and both sides of every change of 2024 and 2025."""
    draw = random.Random(7)
    instants = [draw.randint(FIRST_US, LAST_US) for _ in range(60)]
    for year in (2024, 2025):
        for change in periods_at(zone, instant_us(datetime(year, 7, 1, tzinfo=UTC)))[0][1:]:
            instants += [change - 1, change, change + 1]
    for at_us in instants:
        assert to_clock(zone, at_us) == clock_by_library(zone, at_us), at_us


def test_a_clock_time_that_exists_once_is_an_instant() -> None:
    """2024-07-01 12:00 in New York is 16:00 UTC."""
    clock = instant_us(datetime(2024, 7, 1, 12, tzinfo=UTC))
    assert from_clock("America/New_York", clock) == clock + 4 * 3_600_000_000


def test_a_clock_time_that_exists_twice_or_never_is_none() -> None:
    """The hour that is repeated in November and the one that is left out in March."""
    twice = instant_us(datetime(2024, 11, 3, 1, 30, tzinfo=UTC))
    never = instant_us(datetime(2024, 3, 10, 2, 30, tzinfo=UTC))
    assert from_clock("America/New_York", twice) is None
    assert from_clock("America/New_York", never) is None


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "..", "../zones", "America", "/etc/passwd"])
def test_what_is_no_zone(name: str) -> None:
    """Names outside tzdata, paths included."""
    assert not is_zone(name)
