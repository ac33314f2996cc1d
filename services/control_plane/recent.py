"""The receipts that the indexes have not got yet, and the sweep that takes them there.

A key inserted where it belongs in a large index dirties a page of its own: 4 KiB into the
write-ahead log and again into the file, for 16 bytes. So the keys of a call are appended to the
table `recent` (one row), remembered here, and put into the indexes a generation at a time in the
order of the keys, a slice with each call, where neighbours share pages.

Invariants: a number is in `recent` or in the indexes, for a while in both. Memory follows
committed calls: the counter `puts` in the database says whether it does, and if not (a rollback, a
new connection, a start) it is read again from `recent`. Used in the writer's thread alone.
"""

from array import array
from dataclasses import dataclass, field

import apsw

from services.control_plane.receipt_keys import KEY_BITS, NO_KEY, from_blob, to_blob

generation_receipts = 32_768
"""Sorting one holds the interpreter for about 10 ms; its keys take about 5 MiB."""
recovered_receipts_max = 2 * generation_receipts
"""Found in `recent` at a start; more are swept at once (65,000 take about 0.1 s)."""
generation_groups = 512
"""Rows of `recent` in a generation when calls are small: a look-up of a trace scans them."""
sweep_receipts_min = 256
sweep_pace = 2
"""Receipts swept for one that arrives: a generation is gone before the next is full."""

_OFFSET_BITS = 63 - KEY_BITS
_SWEEPS = tuple(
    f"INSERT OR IGNORE INTO {index} SELECT value >> {_OFFSET_BITS},"
    f" ? + (value & {2**_OFFSET_BITS - 1}) FROM carray(?)"
    for index in ("requests", "traces")
)
"""One statement for all rows: an entry is a key and, below it, its number less `base`."""

# While 2 generations are swept a third one fills, and the last call may be above.
assert recovered_receipts_max + 2 * generation_receipts <= 2**_OFFSET_BITS, "an offset fits"


@dataclass(slots=True)
class _Generation:
    """Receipts with the numbers `base`, `base` + 1, …: their keys, and the number by request."""

    base: int = 0
    groups: int = 0
    requests: "array[int]" = field(default_factory=lambda: array("q"))
    traces: "array[int]" = field(default_factory=lambda: array("q"))
    numbers: dict[int, int] = field(default_factory=dict)

    def add(self, first: int, requests: "array[int]", traces: "array[int]") -> None:
        if not self.groups:
            self.base = first
        assert first == self.base + len(self.traces), "numbers have no gaps"
        self.groups += 1
        self.requests.extend(requests)
        self.traces.extend(traces)
        self.numbers.update(zip(requests, range(first, first + len(requests)), strict=True))
        self.numbers.pop(NO_KEY, None)

    @property
    def is_full(self) -> bool:
        return len(self.traces) >= generation_receipts or self.groups >= generation_groups


class Recent:
    """`follow` opens a call's transaction and `settle` ends it."""

    def __init__(self) -> None:
        self._puts: int | None = None
        self._filling = _Generation()
        self._sealed: _Generation | None = None
        self._entries: list[array[int]] = []
        """Of the sealed generation, sorted: for `requests` and for `traces`."""
        self._swept = 0

    def follow(self, connection: apsw.Connection) -> None:
        """Read everything again if memory and database differ."""
        expected, self._puts = self._puts, None
        puts: int = connection.execute("SELECT puts FROM totals").get
        if puts != expected:
            everything = _Generation()
            for first, requests, traces in connection.execute(
                "SELECT first, requests, traces FROM recent ORDER BY first"
            ):
                everything.add(first, from_blob(requests), from_blob(traces))
            self._filling, self._sealed = everything, None
            if everything.groups:
                self._seal()
            if len(everything.traces) > recovered_receipts_max:
                self._sweep(connection, everything, len(everything.traces))

    def known(self, connection: apsw.Connection, keys: "array[int]") -> dict[int, int]:
        """Those of the request keys that were there before, with the number of their receipt."""
        if not keys:  # SQLite takes no array of nothing
            return {}
        found = dict(
            connection.execute(
                "SELECT key, number FROM requests WHERE key IN (SELECT value FROM carray(?))",
                (apsw.carray(keys),),
            )
        )
        for generation in (self._sealed, self._filling):
            if generation is not None and not generation.numbers.keys().isdisjoint(keys):
                numbers = generation.numbers
                found.update((key, numbers[key]) for key in keys if key in numbers)
        return found

    def add(
        self, connection: apsw.Connection, first: int, requests: "array[int]", traces: "array[int]"
    ) -> None:
        """The keys of new receipts numbered from `first`; NO_KEY where a request is not new."""
        connection.execute(
            "INSERT INTO recent VALUES (?, ?, ?)", (first, to_blob(requests), to_blob(traces))
        )
        self._filling.add(first, requests, traces)

    def settle(self, connection: apsw.Connection, arrived: int) -> None:
        """Sweep at the pace of what arrived, and count the call."""
        if self._sealed is None and self._filling.is_full:
            self._seal()
        if self._sealed is not None:
            self._sweep(connection, self._sealed, max(sweep_receipts_min, sweep_pace * arrived))
        connection.execute("UPDATE totals SET puts = puts + 1")
        self._puts = connection.execute("SELECT puts FROM totals").get

    def _seal(self) -> None:
        sealed = self._filling
        self._sealed, self._filling, self._swept = sealed, _Generation(), 0
        self._entries = [_sorted_entries(keys) for keys in (sealed.requests, sealed.traces)]

    def _sweep(self, connection: apsw.Connection, sealed: _Generation, receipts: int) -> None:
        begin, self._swept = self._swept, self._swept + receipts
        for statement, entries in zip(_SWEEPS, self._entries, strict=True):
            if part := entries[begin : self._swept]:
                connection.execute(statement, (sealed.base, apsw.carray(part)))
        end = len(sealed.traces)
        if self._swept >= end:
            connection.execute("DELETE FROM recent WHERE first < ?", (sealed.base + end,))
            self._sealed, self._entries = None, []


def _sorted_entries(keys: "array[int]") -> "array[int]":
    entries = [key << _OFFSET_BITS | offset for offset, key in enumerate(keys) if key != NO_KEY]
    entries.sort()
    return array("q", entries)
