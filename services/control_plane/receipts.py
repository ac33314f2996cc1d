"""Receipts in: kept once by content, counted once by request. One transaction's work.

Receipts are numbered as they come and kept as they came, those of a call together in one row. What
a request was answered is in the index alone as long as it was answered once; `repeated` and
`answers` hold the others, which are few.
"""

import hashlib
import os
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import apsw
import msgspec

from contracts.lineage import Receipt
from services.control_plane.receipt_keys import (
    NO_KEY,
    request_digest,
    request_keys,
    trace_keys,
)
from services.control_plane.recent import Recent

OK = "ok"
group_receipts_max = 512
"""In one row: a look-up reads all of it."""
_decoded_max = 64
_give_way = os.sched_yield
"""Called after every few hundred microseconds of work. The kernel takes the core from a thread that
computes only at its next tick, 4 ms on many machines; whoever answers requests would wait for it,
while receipts are in no hurry."""
_NO_RECEIPT = (msgspec.MsgspecError, ValueError, RecursionError)
decode_receipt = msgspec.msgpack.Decoder(Receipt).decode
_decode_receipts = msgspec.msgpack.Decoder(list[Receipt]).decode
_split = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class Stored:
    """What one call added: requests counted for the first time, receipts known already, and
    records that are no receipts (kept aside, so that they do not hold up the spool)."""

    counted: int
    duplicates: int
    unreadable: int


@dataclass(slots=True)
class _Arrived:
    """Receipts side by side: their bytes, the digests of their requests, the keys of their traces;
    and when each combination was used."""

    bodies: list[bytes] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    traces: "array[int]" = field(default_factory=lambda: array("q"))
    used_us: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, receipts: list[Receipt], bodies: list[bytes]) -> None:
        """Raises ValueError, and adds nothing, if a trace id is none."""
        self.traces.extend(trace_keys([receipt.trace_id for receipt in receipts]))
        self.digests.extend([request_digest(receipt) for receipt in receipts])
        self.bodies.extend(bodies)
        for receipt in receipts:
            self.used_us[receipt.snapshot].append(receipt.at_us)


@dataclass(slots=True)
class _New:
    """Those of them that are kept, with the key of each request that is counted."""

    bodies: list[bytes] = field(default_factory=list)
    requests: "array[int]" = field(default_factory=lambda: array("q"))
    traces: "array[int]" = field(default_factory=lambda: array("q"))
    counted: int = 0


def put_receipts(
    connection: apsw.Connection, raws: Iterable[msgspec.Raw], recent: Recent
) -> Stored:
    """Keep what is new and count its requests."""
    recent.follow(connection)
    bodies = [bytes(raw) for raw in raws]
    arrived = _read(connection, bodies)
    last: int = connection.execute(
        "SELECT coalesce((SELECT first + count - 1 FROM groups ORDER BY first DESC LIMIT 1), 0)"
    ).get
    new = _sort_out(connection, arrived, last + 1, recent)
    _give_way()
    for begin in range(0, len(new.bodies), group_receipts_max):
        part = slice(begin, begin + group_receipts_max)
        group, first = new.bodies[part], last + 1 + begin
        connection.execute(
            "INSERT INTO groups VALUES (?, ?, ?)", (first, len(group), _joined(group))
        )
        recent.add(connection, first, new.requests[part], new.traces[part])
    _note_use(connection, arrived.used_us)
    connection.execute(
        "UPDATE totals SET receipts = receipts + ?, requests = requests + ?",
        (len(new.bodies), new.counted),
    )
    _give_way()
    recent.settle(connection, len(new.bodies))
    _give_way()
    readable = len(arrived.bodies)
    return Stored(new.counted, readable - len(new.bodies), len(bodies) - readable)


def group_of(connection: apsw.Connection, number: int) -> tuple[int, list[msgspec.Raw]]:
    """The receipts that were kept together with this one, and the first one's number."""
    first, bodies = connection.execute(
        "SELECT first, bodies FROM groups WHERE first <= ? ORDER BY first DESC LIMIT 1", (number,)
    ).get
    return first, _split(bodies)


def _joined(bodies: Sequence[bytes]) -> bytes:
    """A MessagePack array of encoded objects."""
    return b"".join((b"\xdd", len(bodies).to_bytes(4, "big"), *bodies))


def _read(connection: apsw.Connection, bodies: list[bytes]) -> _Arrived:
    """A few at a time, so that they stay in the processor's cache; where one of them is no receipt
    one by one, and what is none is put aside."""
    arrived = _Arrived()
    for begin in range(0, len(bodies), _decoded_max):
        part = bodies[begin : begin + _decoded_max]
        try:
            arrived.add(_decode_receipts(_joined(part)), part)
        except _NO_RECEIPT:
            for body in part:
                _read_one(connection, arrived, body)
        _give_way()
    return arrived


def _read_one(connection: apsw.Connection, arrived: _Arrived, body: bytes) -> None:
    try:
        arrived.add([decode_receipt(body)], [body])
    except _NO_RECEIPT:
        row = (_content(body), body)
        connection.execute("INSERT OR IGNORE INTO unreadable VALUES (?, ?)", row)


def _content(body: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "big", signed=True)


def _sort_out(connection: apsw.Connection, arrived: _Arrived, first: int, recent: Recent) -> _New:
    """What of it is new. Almost always everything is, and of requests never seen."""
    keys = request_keys(arrived.digests)
    known = recent.known(connection, keys)
    if not known and len(set(keys)) == len(keys):
        return _New(arrived.bodies, keys, arrived.traces, len(keys))
    new = _New()
    repeats = _Repeats(connection, first, new.bodies)
    for body, trace, digest, key in zip(
        arrived.bodies, arrived.traces, arrived.digests, keys, strict=True
    ):
        number = first + len(new.bodies)
        earlier = known.setdefault(key, number)
        is_first = earlier == number
        if not is_first:
            is_new, is_counted = repeats.put(body, digest, number, earlier)
            if not is_new:
                continue
            new.counted += is_counted
        new.counted += is_first
        new.bodies.append(body)
        new.requests.append(key if is_first else NO_KEY)
        new.traces.append(trace)
    return new


class _Repeats:
    """Receipts whose request key is there already: of the same request, or, hardly ever, of
    another one with the same key, which is kept by its digest from then on."""

    def __init__(self, connection: apsw.Connection, first: int, arriving: list[bytes]) -> None:
        self._connection = connection
        self._first = first
        self._arriving = arriving
        self._group: tuple[int, list[msgspec.Raw]] = (0, [])
        """The group read last: what is shipped again comes in order."""

    def put(self, body: bytes, digest: bytes, number: int, earlier: int) -> tuple[bool, bool]:
        """Whether the receipt is new, and whether its request is."""
        execute, receipt = self._connection.execute, decode_receipt(body)
        is_ok = receipt.status == OK
        if execute("SELECT 1 FROM repeated WHERE request = ?", (digest,)).get is None:
            other_body = self._body_at(earlier)
            if other_body == body:
                return False, False
            other = decode_receipt(other_body)
            if (other.tenant_id, other.id) != (receipt.tenant_id, receipt.id):
                self._begin(digest, number, is_ok, body)
                return True, True
            self._begin(digest, earlier, other.status == OK, other_body)
        before = self._connection.total_changes()
        execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (digest, _content(body)))
        if self._connection.total_changes() == before:
            return False, False
        execute(
            "UPDATE repeated SET answers = answers + 1, is_ok = max(is_ok, ?3),"
            " billed = CASE WHEN is_ok < ?3 THEN ?2 ELSE billed END WHERE request = ?1",
            (digest, number, is_ok),
        )
        return True, False

    def _begin(self, digest: bytes, billed: int, is_ok: bool, body: bytes) -> None:
        execute = self._connection.execute
        execute("INSERT INTO repeated VALUES (?, 1, ?, ?)", (digest, billed, is_ok))
        execute("INSERT INTO answers VALUES (?, ?)", (digest, _content(body)))

    def _body_at(self, number: int) -> bytes:
        if number >= self._first:
            return self._arriving[number - self._first]
        first, bodies = self._group
        if not first <= number < first + len(bodies):
            self._group = first, bodies = group_of(self._connection, number)
        return bytes(bodies[number - first])


def _note_use(connection: apsw.Connection, used_us: Mapping[str, Sequence[int]]) -> None:
    """Widen the time in which each combination was in use."""
    connection.executemany(
        "UPDATE combinations SET first_us = min(first_us, ?2), last_us = max(last_us, ?3)"
        " WHERE snapshot = ?1",
        [(snapshot, min(times), max(times)) for snapshot, times in used_us.items()],
    )
