"""Instants of request rows: from the wire to integer microseconds since 1970 UTC.

An instant is a MessagePack timestamp or RFC 3339 text with an offset; without one it is refused
unless the column's contract names a zone; finer than a microsecond it is refused, never rounded.
"""

import re
import struct
from datetime import datetime

from msgspec.msgpack import Ext

from services.data_fabric.zones import FIRST_US, LAST_US, YEARS, from_clock, instant_us

_RFC_3339 = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})?"
)
_TIMESTAMP = -1
cache_max = 65_536
"""Texts of days and of times of day that are remembered; past it they are forgotten."""


class InstantRefused(Exception):
    """The limit that an instant breaks."""


class InstantParser:
    """Parses the instants of one column. Days and times of day repeat, so each is parsed once."""

    def __init__(self, zone: str | None) -> None:
        self._zone = zone
        self._days: dict[str, int] = {}
        self._times: dict[str, int] = {}

    def __call__(self, value: object) -> int:
        """Microseconds since 1970 UTC. Raises InstantRefused."""
        if type(value) is str:
            day, time = self._days.get(value[:10]), self._times.get(value[10:])
            return self._parse(value) if day is None or time is None else day + time
        if isinstance(value, Ext):
            return _checked(_timestamp_us(value))
        raise InstantRefused("a MessagePack timestamp or RFC 3339 text")

    def _parse(self, text: str) -> int:
        match = _RFC_3339.fullmatch(text)
        if match is None:
            raise InstantRefused("RFC 3339, such as 2013-12-24T18:30:00-05:00")
        day, time, fraction, offset = match.groups()
        if fraction is not None and len(fraction) > 7:
            raise InstantRefused("at most six digits of a second")
        if offset is None and self._zone is None:
            raise InstantRefused("an offset, because the contract names no zone")
        try:
            midnight_us = instant_us(datetime.fromisoformat(f"{day}T00:00:00+00:00"))
            at_us = instant_us(
                datetime.fromisoformat(f"{day}T{time}{fraction or ''}{(offset or 'Z').upper()}")
            )
        except (ValueError, OverflowError) as error:
            raise InstantRefused(f"a day and time that exist ({error})") from error
        _checked(at_us)
        if offset is None:
            assert self._zone is not None, "checked above"
            found = from_clock(self._zone, at_us)
            if found is None:
                raise InstantRefused(f"a time that the clocks of {self._zone} show exactly once")
            return _checked(found)
        if len(self._days) + len(self._times) >= cache_max:
            self._days.clear()
            self._times.clear()
        # Only in years whose every time is allowed, so that the sum needs no further check.
        if midnight_us - _MARGIN_US > FIRST_US and midnight_us + _MARGIN_US < LAST_US:
            self._days[text[:10]] = midnight_us
            self._times[text[10:]] = at_us - midnight_us
        return at_us


_MARGIN_US = 3 * 86_400_000_000
"""A time of day and an offset move an instant by less than two days from its date's midnight."""


def _checked(at_us: int) -> int:
    if not FIRST_US <= at_us <= LAST_US:
        raise InstantRefused(f"the years {YEARS[0]} to {YEARS[1] - 1}")
    return at_us


def _timestamp_us(value: Ext) -> int:
    """Source: the MessagePack specification, timestamp extension type."""
    payload = bytes(value.data)
    if value.code != _TIMESTAMP or len(payload) not in (4, 8, 12):
        raise InstantRefused("a MessagePack timestamp")
    if len(payload) == 4:
        seconds, nanoseconds = struct.unpack(">I", payload)[0], 0
    elif len(payload) == 8:
        packed = struct.unpack(">Q", payload)[0]
        seconds, nanoseconds = packed & (2**34 - 1), packed >> 34
    else:
        nanoseconds, seconds = struct.unpack(">Iq", payload)
    if nanoseconds >= 1_000_000_000:
        raise InstantRefused("less than a second of nanoseconds")
    if nanoseconds % 1_000:
        raise InstantRefused("whole microseconds")
    return int(seconds) * 1_000_000 + nanoseconds // 1_000
