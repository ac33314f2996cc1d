"""ledger.db: receipts and the combinations they name; what was counted, and what a trace finds.

A receipt is kept once by its content, which also covers a record that is shipped again, out of
order, or from a copied spool file. Billing counts a (tenant_id, id) once: the first ok answer, or
as long as there is none the first one. `receipts.py` writes the receipts, this finds them.
"""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import apsw
import msgspec

from contracts.lineage import Combination, Receipt
from services.control_plane import ledger_schema
from services.control_plane.connection import Schema
from services.control_plane.database import Database
from services.control_plane.receipt_keys import (
    from_blob,
    request_digest,
    to_blob,
    trace_keys,
)
from services.control_plane.receipts import OK, Stored, decode_receipt, group_of, put_receipts
from services.control_plane.recent import Recent

NAME = "ledger.db"
_ballast_bytes = 8 * 1024 * 1024
SCHEMA = Schema(
    application_id=0x6D_6C_65_64,  # "mled"
    migrations=ledger_schema.MIGRATIONS,
    cache_kib=16_384,
    checkpoint_pages=6_000,  # 24 MiB, below the bound at which readers are held back
)
_decode_combination = msgspec.json.Decoder(Combination).decode
_NEVER_US = 2**62
_answers_max = 64
"""Answers to one trace id that a look-up considers, the newest."""
_candidates_max = 1_024
"""Receipts under a trace's key that are looked at, the newest; other traces may share the key."""
_combinations_max = 64


@dataclass(frozen=True, slots=True)
class Totals:
    """Receipts kept, and requests counted for billing."""

    receipts: int
    requests: int


@dataclass(frozen=True, slots=True)
class Found:
    """A receipt, the combination it names if there is one, and how often its request was
    answered."""

    receipt: Receipt
    combination: Combination | None
    answers: int


@dataclass(frozen=True, slots=True)
class Used:
    """A combination and the wall microseconds of the first and last receipt that named it."""

    combination: Combination
    first_us: int
    last_us: int


class Ledger:
    """Receipts in, traces out. `totals` follows every write of this process."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.totals = Totals(0, 0)
        self._recent = Recent()

    @classmethod
    def at(cls, folder: Path, vfs: str | None = None) -> "Ledger":
        """The ledger of a home's `.mortise/` folder, not opened yet."""
        return cls(Database(folder / NAME, SCHEMA, ballast_bytes=_ballast_bytes, vfs=vfs))

    async def open(self) -> None:
        """Open the file and read the totals."""
        await self.database.open()
        self.totals = await self.database.read(_read_totals)

    async def put(
        self, receipts: Iterable[msgspec.Raw], combinations: Iterable[Combination]
    ) -> Stored:
        """Keep receipts and combinations in one transaction; all on the disk when it returns."""

        def work(connection: apsw.Connection) -> tuple[Stored, Totals]:
            for combination in combinations:
                _put_combination(connection, combination)
            stored = put_receipts(connection, receipts, self._recent)
            return stored, _read_totals(connection)

        stored, self.totals = await self.database.write(work)
        return stored

    async def trace(self, trace_id: str) -> Found | None:
        """The receipt of a trace: its last ok one, else its last one."""
        return await self.database.read(lambda connection: _find(connection, trace_id))

    async def combinations(self, model: str, until_us: int) -> list[Used]:
        """The last combinations of a model that receipts named up to an instant, newest first."""

        def work(connection: apsw.Connection) -> list[Used]:
            rows = connection.execute(
                "SELECT body, first_us, last_us FROM combinations WHERE model = ?"
                " AND first_us <= ? ORDER BY first_us DESC LIMIT ?",
                (model, until_us, _combinations_max),
            )
            return [Used(_decode_combination(body), first, last) for body, first, last in rows]

        return await self.database.read(work)


def _read_totals(connection: apsw.Connection) -> Totals:
    receipts, requests = connection.execute("SELECT receipts, requests FROM totals").get
    return Totals(receipts, requests)


def _put_combination(connection: apsw.Connection, combination: Combination) -> None:
    connection.execute(
        "INSERT OR IGNORE INTO combinations VALUES (?, ?, ?, 0, ?)",
        (
            combination.lineage.snapshot,
            combination.model_name,
            _NEVER_US,
            msgspec.json.encode(combination),
        ),
    )


def _find(connection: apsw.Connection, trace_id: str) -> Found | None:
    receipts = list(islice(_answers(connection, trace_id), _answers_max))
    if not receipts:
        return None
    receipt = next((answer for answer in receipts if answer.status == OK), receipts[0])
    answers = connection.execute(
        "SELECT answers FROM repeated WHERE request = ?", (request_digest(receipt),)
    ).get
    body = connection.execute(
        "SELECT body FROM combinations WHERE snapshot = ?", (receipt.snapshot,)
    ).get
    combination = None if body is None else _decode_combination(body)
    return Found(receipt, combination, 1 if answers is None else answers)


def _answers(connection: apsw.Connection, trace_id: str) -> Iterator[Receipt]:
    """The receipts of a trace, newest first."""
    trace = bytes.fromhex(trace_id)
    first, bodies = 0, list[msgspec.Raw]()
    for number in _numbers(connection, trace_keys([trace_id])):
        if not first <= number < first + len(bodies):
            first, bodies = group_of(connection, number)
        receipt = decode_receipt(bodies[number - first])
        if bytes.fromhex(receipt.trace_id) == trace:
            yield receipt


def _numbers(connection: apsw.Connection, keys: "array[int]") -> list[int]:
    """Of the receipts under one trace key, newest first: from the index, and from the rows whose
    keys are not all in it."""
    wanted = to_blob(keys)
    rows = connection.execute(
        "SELECT number FROM traces WHERE key = ? ORDER BY number DESC LIMIT ?",
        (keys[0], _candidates_max),
    )
    numbers = {number for (number,) in rows}
    for first, traces in connection.execute(
        "SELECT first, traces FROM recent WHERE instr(traces, ?) > 0", (wanted,)
    ):
        numbers.update(first + at for at, key in enumerate(from_blob(traces)) if key == keys[0])
    return sorted(numbers, reverse=True)[:_candidates_max]
