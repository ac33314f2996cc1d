"""Clock time in IANA zones as plain integers: microseconds since 1970 on the local clock.

Zone rules come from the pinned tzdata package, so that a host's own zone files do not matter.
The engine brings its own rules; the certificate compares the two.
"""

import importlib.resources
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEARS = (1900, 2200)
"""The fabric refuses instants outside these years at its entrance."""
_SPAN_BITS = 45
"""Periods are looked up per span of 2^45 µs, 407 days: few enough to find by a short bisection,
and quick enough to compute (1 ms) when a request first asks for a new one."""
_SAMPLE_US = 7 * DAY_US
"""No zone in tzdata changes its offset and changes it back within a week since 1900."""

Periods = tuple[list[int], list[int]]
"""Starts of the periods of constant offset in UTC, ascending, and their offsets; microseconds."""


def instant_us(moment: datetime) -> int:
    """Microseconds since 1970 UTC of an aware datetime."""
    passed = moment - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


FIRST_US = instant_us(datetime(YEARS[0], 1, 1, tzinfo=UTC))
LAST_US = instant_us(datetime(YEARS[1], 1, 1, tzinfo=UTC)) - 1


class ZoneUnknown(ArithmeticError):
    """A text that names no time zone; for the closure a value that cannot be computed."""

    def __str__(self) -> str:
        return f"{self.args[0]!r} is no time zone"


@lru_cache(maxsize=1_024)
def load_zone(name: str) -> ZoneInfo:
    """The zone of that name in tzdata. Raises ZoneUnknown if there is none."""
    place = importlib.resources.files("tzdata") / "zoneinfo"
    try:
        if ".." in name:
            raise ZoneUnknown(name)
        with place.joinpath(*name.split("/")).open("rb") as stream:
            return ZoneInfo.from_file(stream, key=name)
    except (OSError, ValueError) as error:
        raise ZoneUnknown(name) from error


def is_zone(name: str) -> bool:
    """Whether tzdata has a zone of that name."""
    try:
        load_zone(name)
    except ZoneUnknown:
        return False
    return True


class _Spans(dict[tuple[str, int], Periods]):
    """Periods by (zone, span), computed at the first look-up. At most 24 spans a zone."""

    def __missing__(self, key: tuple[str, int]) -> Periods:
        name, span = key
        first_us = span << _SPAN_BITS
        periods = _periods(load_zone(name), first_us, first_us + (1 << _SPAN_BITS))
        self[key] = periods
        return periods


def _periods(zone: ZoneInfo, first_us: int, end_us: int) -> Periods:
    def offset_us(at_us: int) -> int:
        offset = (_EPOCH + timedelta(microseconds=at_us)).astimezone(zone).utcoffset()
        assert offset is not None, "an aware datetime has an offset"
        return round(offset.total_seconds() * 1_000_000)

    starts, offsets, at_us = [first_us], [offset_us(first_us)], first_us
    while at_us < end_us:
        next_us = min(at_us + _SAMPLE_US, end_us)
        if (found := offset_us(next_us)) != offsets[-1]:
            low, high = at_us, next_us
            while high - low > 1:
                middle = (low + high) // 2
                is_before = offset_us(middle) == offsets[-1]
                low, high = (middle, high) if is_before else (low, middle)
            starts.append(high)
            offsets.append(found)
        at_us = next_us
    return starts, offsets


_spans = _Spans()


def periods_at(name: str, at_us: int) -> Periods:
    """The periods of a zone around an instant."""
    return _spans[name, at_us >> _SPAN_BITS]


def to_clock(name: str, at_us: int) -> int:
    """What the zone's clock shows at an instant."""
    starts, offsets = _spans[name, at_us >> _SPAN_BITS]
    return at_us + offsets[bisect_right(starts, at_us) - 1]


def from_clock(name: str, clock_us: int) -> int | None:
    """The one instant at which the zone's clock shows this; None where there are none or two."""
    around = (clock_us - DAY_US, clock_us, clock_us + DAY_US)
    offsets = {offset for at_us in around for offset in periods_at(name, at_us)[1]}
    found = {
        clock_us - offset for offset in offsets if to_clock(name, clock_us - offset) == clock_us
    }
    return found.pop() if len(found) == 1 else None
