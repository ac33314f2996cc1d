"""Receipts as rows: kept once by content, counted once by request. One transaction's work.

Few statements over many rows: what a statement costs by itself is a third of a receipt.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import apsw
import msgspec

from contracts.lineage import Receipt

OK = "ok"
decode_receipt = msgspec.msgpack.Decoder(Receipt).decode


@dataclass(frozen=True, slots=True)
class Stored:
    """What one call added: requests counted for the first time, receipts known already, and
    records that are no receipts (kept aside, so that they do not hold up the spool)."""

    counted: int
    duplicates: int
    unreadable: int


class _Read(NamedTuple):
    """A receipt as it is stored (a tuple: one is made for each receipt)."""

    receipt: Receipt
    trace: bytes
    content: int
    body: bytes


def put_receipts(connection: apsw.Connection, raws: Iterable[msgspec.Raw]) -> Stored:
    """Keep what is new and count its requests."""
    bodies = [bytes(raw) for raw in raws]
    read = [one for body in bodies if (one := _read(connection, body)) is not None]
    last: int = connection.execute("SELECT coalesce(max(number), 0) FROM receipts").get
    connection.executemany(
        "INSERT OR IGNORE INTO receipts VALUES (?, ?, ?, ?)",
        ((last + n, one.trace, one.content, one.body) for n, one in enumerate(read, 1)),
    )
    numbers: str = connection.execute(
        "SELECT json_group_array(number) FROM receipts WHERE number > ?", (last,)
    ).get
    new = {number: read[number - last - 1].receipt for number in sorted(json.loads(numbers))}
    counted = _count_requests(connection, new)
    _note_use(connection, new.values())
    connection.execute(
        "UPDATE totals SET receipts = receipts + ?, requests = requests + ?", (len(new), counted)
    )
    return Stored(counted, len(read) - len(new), len(bodies) - len(read))


def _read(connection: apsw.Connection, body: bytes) -> _Read | None:
    """The receipt in these bytes; what is none is put aside."""
    content = int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "big", signed=True)
    try:
        receipt = decode_receipt(body)
        return _Read(receipt, bytes.fromhex(receipt.trace_id), content, body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        connection.execute("INSERT OR IGNORE INTO unreadable VALUES (?, ?)", (content, body))
        return None


def _count_requests(connection: apsw.Connection, new: Mapping[int, Receipt]) -> int:
    """Count answers to (tenant_id, id) by receipt number, ascending; how many were the first.

    A request that is there already gets one answer more, and an ok answer takes the bill from a
    failed one. The first statement inserted exactly those whose `billed` is their own number.
    """
    rows = [(request_key(receipt), number, receipt.status == OK) for number, receipt in new.items()]
    before = connection.total_changes()
    connection.executemany("INSERT OR IGNORE INTO requests VALUES (?1, 1, ?2, ?3)", rows)
    counted = connection.total_changes() - before
    if counted < len(rows):
        connection.executemany(
            "UPDATE requests SET answers = answers + 1, is_ok = max(is_ok, ?3),"
            " billed = CASE WHEN is_ok < ?3 THEN ?2 ELSE billed END"
            " WHERE request = ?1 AND billed <> ?2",
            rows,
        )
    return counted


def _note_use(connection: apsw.Connection, receipts: Iterable[Receipt]) -> None:
    """Widen the time in which each combination was in use."""
    used: dict[str, tuple[int, int]] = {}
    for receipt in receipts:
        first, last = used.get(receipt.snapshot, (receipt.at_us, receipt.at_us))
        used[receipt.snapshot] = (min(first, receipt.at_us), max(last, receipt.at_us))
    connection.executemany(
        "UPDATE combinations SET first_us = min(first_us, ?2), last_us = max(last_us, ?3)"
        " WHERE snapshot = ?1",
        [(snapshot, first, last) for snapshot, (first, last) in used.items()],
    )


def request_key(receipt: Receipt) -> bytes:
    """The length keeps ("ab", "c") apart from ("a", "bc")."""
    text = f"{len(receipt.tenant_id)}:{receipt.tenant_id}{receipt.id}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
