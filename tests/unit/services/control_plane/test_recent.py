"""Keys between their arrival and the indexes: nothing is lost or counted twice on the way."""

import random
from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import apsw
import msgspec
import pytest

from contracts.lineage import Receipt
from services.control_plane import ledger as ledger_module
from services.control_plane import ledger_schema, receipts, recent
from services.control_plane.connection import Schema
from services.control_plane.database import Database
from services.control_plane.ledger import Ledger, Totals
from services.control_plane.receipts import put_receipts

GENERATION = 100


@pytest.fixture(autouse=True)
def _small_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few hundred receipts pass through several."""
    monkeypatch.setattr(recent, "generation_receipts", GENERATION)
    monkeypatch.setattr(recent, "recovered_receipts_max", 2 * GENERATION)
    monkeypatch.setattr(recent, "sweep_receipts_min", 8)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    """An empty ledger."""
    one = Ledger.at(tmp_path)
    await one.open()
    yield one
    await one.database.close()


def raw(number: int, request: str = "", status: str = "ok") -> msgspec.Raw:
    """The encoded receipt of one answer; traces spread as real ones do."""
    trace_id = f"{random.Random(number).getrandbits(128):032x}"
    one = Receipt(
        "t", request or f"r{number}", trace_id, number, status, "m", "1", 1, "sha256:0", "default",
        False, [], 2, 0, 1, 0, 0, 10, 100, [1] * 8, [("orchestrator.0-x", 0, 100)],
    )  # fmt: skip
    return msgspec.Raw(msgspec.msgpack.encode(one))


def trace_of(one: msgspec.Raw) -> str:
    """Its trace id."""
    return receipts.decode_receipt(one).trace_id


async def found(ledger: Ledger, raws: Sequence[msgspec.Raw]) -> bool:
    """Every one is what its trace finds."""
    for one in raws:
        answer = await ledger.trace(trace_of(one))
        if answer is None or msgspec.msgpack.encode(answer.receipt) != bytes(one):
            return False
    return True


async def rows(ledger: Ledger, table: str) -> int:
    """How many a table has."""
    count: int = await ledger.database.read(
        lambda c: c.execute(f"SELECT count(*) FROM {table}").get
    )
    return count


async def test_generations_pass_through_the_indexes(ledger: Ledger) -> None:
    """Each receipt counts once however it is shipped again, before, during and after its sweep."""
    raws, chance = [raw(number) for number in range(1_000)], random.Random(5)
    for begin in range(0, 1_000, 37):
        part = raws[begin : begin + 37]
        assert (await ledger.put(part, [])).counted == len(part)
        again = chance.sample(raws[: begin + len(part)], 30)
        assert (await ledger.put(again, [])).duplicates == 30
    assert ledger.totals == Totals(1_000, 1_000)
    assert await rows(ledger, "requests") >= 1_000 - 3 * GENERATION
    assert await rows(ledger, "recent") <= 3 * GENERATION // 37
    assert await found(ledger, raws)


async def test_a_start_amid_a_sweep_loses_nothing(tmp_path: Path) -> None:
    """After each call another process goes on, which reads what is not in the indexes yet."""
    raws = [raw(number) for number in range(600)]
    for begin in range(0, 600, 60):
        ledger = Ledger.at(tmp_path)
        await ledger.open()
        again = raws[max(0, begin - 200) : begin]
        stored = await ledger.put([*again, *raws[begin : begin + 60]], [])
        assert (stored.counted, stored.duplicates) == (60, len(again))
        assert await found(ledger, raws[: begin + 60 : 13])
        await ledger.database.close()


async def test_more_than_two_generations_at_a_start_are_swept_at_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a process dies, what waits for the indexes stays bounded."""
    raws = [raw(number) for number in range(500)]
    await ledger.put(raws[:450], [])
    ledger._recent = recent.Recent()
    assert (await ledger.put(raws, [])).counted == 50
    assert await rows(ledger, "requests") == 450
    assert await rows(ledger, "recent") == 1
    assert await found(ledger, raws[::17])


async def test_a_rolled_back_call_is_forgotten(ledger: Ledger) -> None:
    """What memory took from it is dropped: the same receipts are new afterwards."""
    raws = [raw(number) for number in range(300)]
    await ledger.put(raws[:150], [])

    def fail(connection: apsw.Connection) -> None:
        put_receipts(connection, raws[150:], ledger._recent)
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await ledger.database.write(fail)
    stored = await ledger.put(raws, [])
    assert (stored.counted, stored.duplicates) == (150, 150)
    assert await found(ledger, raws)


async def test_a_new_connection_goes_on_amid_a_sweep(tmp_path: Path) -> None:
    """After a full disk the writer is connected anew, without the old one's temporary tables."""
    raws, memory = [raw(number) for number in range(390)], recent.Recent()
    for begin in range(0, 390, 30):
        ledger = Ledger.at(tmp_path)
        ledger._recent = memory
        await ledger.open()
        assert (await ledger.put(raws[begin : begin + 30], [])).counted == 30
        assert (await ledger.put(raws[: begin + 30], [])).counted == 0
        assert await found(ledger, raws[: begin + 30 : 9])
        await ledger.database.close()


async def test_small_calls_seal_a_generation_too(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up scans a row for each call, so their number is bounded."""
    monkeypatch.setattr(recent, "generation_groups", 10)
    raws = [raw(number) for number in range(60)]
    for one in raws:
        await ledger.put([one], [])
    assert await rows(ledger, "recent") <= 20
    assert await found(ledger, raws)


async def test_one_key_for_everything_changes_no_count(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys narrow and decide nothing: with one for all requests and one for all traces each
    request is counted once, and every trace finds its own receipt."""

    def same(names: Sequence[object]) -> "array[int]":
        return array("q", [5] * len(names))

    monkeypatch.setattr(receipts, "request_keys", same)
    monkeypatch.setattr(receipts, "trace_keys", same)
    monkeypatch.setattr(ledger_module, "trace_keys", same)
    raws = [raw(number) for number in range(40)]
    retries = [raw(number + 1_000, f"r{number}") for number in range(40)]
    for part, counted, duplicates in (
        (raws, 40, 0),
        (raws, 0, 40),
        (retries, 0, 0),
        ([*raws, *retries], 0, 80),
    ):
        stored = await ledger.put(part, [])
        assert (stored.counted, stored.duplicates) == (counted, duplicates)
    assert ledger.totals == Totals(80, 40)
    assert await found(ledger, [*raws, *retries])
    answer = await ledger.trace(trace_of(raws[7]))
    assert answer is not None
    assert answer.answers == 2


async def test_a_ledger_of_version_1_is_carried_over(tmp_path: Path) -> None:
    """Counts, bills and traces stay; what is shipped again is still known."""
    raws = [raw(0, "a", "INTERNAL"), raw(1, "a"), *(raw(number) for number in range(2, 700))]
    schema = Schema(ledger_module.SCHEMA.application_id, ledger_schema.MIGRATIONS[:1])
    old = Database(tmp_path / ledger_module.NAME, schema, ballast_bytes=4_096)
    await old.open()

    def fill(connection: apsw.Connection) -> None:
        connection.executemany(
            "INSERT INTO receipts VALUES (?, ?, ?, ?)",
            [
                (number + number // 9, bytes.fromhex(trace_of(one)), number, bytes(one))
                for number, one in enumerate(raws, 1)
            ],
        )
        connection.execute("UPDATE totals SET receipts = 700, requests = 699")

    await old.write(fill)
    await old.close()
    ledger = Ledger.at(tmp_path)
    await ledger.open()
    assert ledger.totals == Totals(700, 699)
    assert await found(ledger, raws[1::7])
    billed = await ledger.database.read(lambda c: c.execute("SELECT billed FROM repeated").get)
    assert billed == 2
    assert (await ledger.put(raws, [])).duplicates == 700
    await ledger.database.close()
