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

generation_receipts = 65_536
"""Its request keys take about 10 MiB; more receipts share more pages."""
recovered_receipts_max = 2 * generation_receipts
"""Found in `recent` at a start; more are swept at once (130,000 take about 0.2 s)."""
generation_groups = 512
"""Rows of `recent` in a generation when calls are small: a look-up of a trace scans them."""
sweep_receipts_min = 256
sweep_pace = 2
"""Receipts swept for one that arrives: a generation is gone before the next is full."""

_OFFSET_BITS = 63 - KEY_BITS
_ENTRY_MAX = 2**63 - 1
_INDEXES = ("requests", "traces")
# An entry is a key and, below it, how far its number is from the generation's first. They are
# sorted and swept inside SQLite, where they hold up no other thread: in Python 33,000 took 50 ms.
_SEAL = tuple(
    (
        f"CREATE TEMP TABLE IF NOT EXISTS sealed_{index} (entry INTEGER PRIMARY KEY)",
        f"DELETE FROM sealed_{index}",
        f"INSERT INTO sealed_{index} SELECT value << {_OFFSET_BITS} | (rowid - 1) AS entry"
        f" FROM carray(?) WHERE value <> {NO_KEY} ORDER BY entry",
    )
    for index in _INDEXES
)
_SLICE_END = tuple(
    f"SELECT entry FROM sealed_{index} WHERE entry > ? ORDER BY entry LIMIT 1 OFFSET ?"
    for index in _INDEXES
)
_SWEEP = tuple(
    f"INSERT OR IGNORE INTO {index} SELECT entry >> {_OFFSET_BITS},"
    f" ? + (entry & {2**_OFFSET_BITS - 1}) FROM sealed_{index}"
    " WHERE entry > ? AND entry <= ? ORDER BY entry"
    for index in _INDEXES
)

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
        self._connection: apsw.Connection | None = None
        """The one whose temporary tables hold the sealed generation."""
        self._filling = _Generation()
        self._sealed: _Generation | None = None
        self._swept = [0, 0]
        """The last entry of each index that is in it; `_ENTRY_MAX`: all are."""

    def follow(self, connection: apsw.Connection) -> None:
        """Read everything again if memory and database differ."""
        expected, self._puts = self._puts, None
        puts: int = connection.execute("SELECT puts FROM totals").get
        if puts != expected or connection is not self._connection:
            self._connection = connection
            everything = _Generation()
            for first, requests, traces in connection.execute(
                "SELECT first, requests, traces FROM recent ORDER BY first"
            ):
                everything.add(first, from_blob(requests), from_blob(traces))
            self._filling, self._sealed = everything, None
            if everything.groups:
                self._seal(connection)
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
            self._seal(connection)
        if self._sealed is not None:
            self._sweep(connection, self._sealed, max(sweep_receipts_min, sweep_pace * arrived))
        connection.execute("UPDATE totals SET puts = puts + 1")
        self._puts = connection.execute("SELECT puts FROM totals").get

    def _seal(self, connection: apsw.Connection) -> None:
        sealed, self._filling = self._filling, _Generation()
        self._sealed, self._swept = sealed, [0, 0]
        keys_of = (sealed.requests, sealed.traces)
        for (create, empty, fill), keys in zip(_SEAL, keys_of, strict=True):
            connection.execute(create)
            connection.execute(empty)
            connection.execute(fill, (apsw.carray(keys),))

    def _sweep(self, connection: apsw.Connection, sealed: _Generation, receipts: int) -> None:
        for at, (find_end, sweep) in enumerate(zip(_SLICE_END, _SWEEP, strict=True)):
            begin = self._swept[at]
            end = connection.execute(find_end, (begin, receipts)).get
            self._swept[at] = _ENTRY_MAX if end is None else end
            connection.execute(sweep, (sealed.base, begin, self._swept[at]))
        if self._swept == [_ENTRY_MAX, _ENTRY_MAX]:
            end = sealed.base + len(sealed.traces)
            connection.execute("DELETE FROM recent WHERE first < ?", (end,))
            self._sealed = None
