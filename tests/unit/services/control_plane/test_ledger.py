"""Receipts: each kept once, each request counted once, every trace found."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from contracts.lineage import NOTHING, AiVersion, Combination, Lineage, Receipt
from services.control_plane import receipts
from services.control_plane.ledger import Ledger, Totals
from services.control_plane.receipts import group_of

DIGEST = "sha256:" + "a" * 64


def receipt(number: int, **fields: Any) -> Receipt:
    """The receipt of one answered request."""
    values: dict[str, Any] = {
        "tenant_id": "t",
        "id": f"r{number}",
        "trace_id": f"{number:032x}",
        "at_us": 1_000_000 + number,
        "status": "ok",
        "model_name": "m",
        "model_version": "1",
        "policy_version": 1,
        "snapshot": DIGEST,
        "variant": "default",
        "degraded": False,
        "marks": [],
        "risk_level": 2,
        "peer_uid": 0,
        "rows": 1,
        "tokens_in": 0,
        "tokens_out": 0,
        "compute_us": 10,
        "total_us": 100,
        "stages_us": [1] * 8,
        "hops": [("orchestrator.0-x", 0, 100)],
    }
    return Receipt(**{**values, **fields})


def combination(snapshot: str = DIGEST, model: str = "m") -> Combination:
    """A combination with this snapshot digest."""
    return Combination(
        lineage=Lineage(snapshot=snapshot, weights=DIGEST, infra=DIGEST, policy=DIGEST),
        version=AiVersion(data=NOTHING, model=DIGEST, infra=DIGEST, policy=DIGEST),
        model_name=model,
        model_version="1",
        policy_version=1,
    )


def raw(*receipts: Receipt) -> list[msgspec.Raw]:
    """As they arrive."""
    return [msgspec.Raw(msgspec.msgpack.encode(one)) for one in receipts]


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    """An empty ledger."""
    one = Ledger.at(tmp_path)
    await one.open()
    yield one
    await one.database.close()


async def test_a_receipt_is_found_with_its_combination(ledger: Ledger) -> None:
    """By its trace id; an unknown one is None."""
    stored = await ledger.put(raw(receipt(1)), [combination()])
    assert (stored.counted, stored.duplicates) == (1, 0)
    found = await ledger.trace(f"{1:032x}")
    assert found is not None
    assert found.receipt == receipt(1)
    assert found.combination == combination()
    assert found.answers == 1
    assert await ledger.trace(f"{2:032x}") is None


async def test_a_receipt_may_come_before_its_combination(ledger: Ledger) -> None:
    """It is kept; the combination is found once it has come."""
    await ledger.put(raw(receipt(1)), [])
    found = await ledger.trace(f"{1:032x}")
    assert found is not None
    assert found.combination is None
    await ledger.put([], [combination()])
    found = await ledger.trace(f"{1:032x}")
    assert found is not None
    assert found.combination == combination()


async def test_shipments_repeated_and_out_of_order_count_once(ledger: Ledger) -> None:
    """Any mixture of overlapping, repeated and reordered shipments ends in the same totals."""
    receipts = raw(*(receipt(number) for number in range(200)))
    chance = random.Random(7)
    counted = duplicates = 0
    shipments = [
        receipts[start : start + length]
        for start, length in ((chance.randrange(200), chance.randrange(1, 60)) for _ in range(30))
    ]
    for shipment in [*shipments, receipts, receipts[::-1]]:
        stored = await ledger.put(shipment, [combination()])
        counted += stored.counted
        duplicates += stored.duplicates
    assert counted == 200
    assert duplicates == sum(map(len, shipments)) + 400 - 200
    assert ledger.totals == Totals(200, 200)


async def test_a_retried_request_is_counted_once_and_every_trace_found(ledger: Ledger) -> None:
    """The same (tenant_id, id) under two traces: one bill, two answers, both traces there."""
    first, again = receipt(1), receipt(2, id="r1")
    assert (await ledger.put(raw(first), [])).counted == 1
    assert (await ledger.put(raw(again), [])).counted == 0
    assert ledger.totals == Totals(2, 1)
    for number in (1, 2):
        found = await ledger.trace(f"{number:032x}")
        assert found is not None
        assert found.answers == 2


async def test_a_retry_with_the_same_trace_shows_the_answer(ledger: Ledger) -> None:
    """A failure and the ok answer of one trace: the ok one is shown, whichever came last."""
    failed = receipt(1, status="UNAVAILABLE", at_us=5)
    for order in ([failed, receipt(1)], [receipt(1), failed]):
        await ledger.put(raw(*order), [])
        found = await ledger.trace(f"{1:032x}")
        assert found is not None
        assert (found.receipt.status, found.answers) == ("ok", 2)


async def test_tenants_do_not_share_ids(ledger: Ledger) -> None:
    """The same id of two tenants is two requests, however the names run together."""
    receipts = [
        receipt(1, tenant_id="a", id="bc"),
        receipt(2, tenant_id="ab", id="c"),
        receipt(3, tenant_id="a", id="c"),
    ]
    assert (await ledger.put(raw(*receipts), [])).counted == 3


async def test_the_bill_is_the_ok_answer(ledger: Ledger) -> None:
    """A failed first answer gives the bill to the first ok one, which keeps it."""
    receipts = [
        receipt(1, id="r", status="INTERNAL"),
        receipt(2, id="r"),
        receipt(3, id="r"),
        receipt(4, id="r", status="INTERNAL"),
    ]
    await ledger.put(raw(*receipts), [])

    def billed(connection: apsw.Connection) -> bytes:
        number = connection.execute("SELECT billed FROM repeated").get
        first, bodies = group_of(connection, number)
        return bytes(bodies[number - first])

    body = await ledger.database.read(billed)
    assert msgspec.msgpack.decode(body, type=Receipt).trace_id == f"{2:032x}"


async def test_garbage_does_not_hold_up_the_spool(ledger: Ledger) -> None:
    """What is no receipt is kept aside and told; the good ones around it are stored."""
    garbage = [
        msgspec.Raw(b"\x93\x01\x02\x03"),
        msgspec.Raw(msgspec.msgpack.encode(receipt(9, trace_id="not hexadecimal"))),
    ]
    stored = await ledger.put([*raw(receipt(1)), *garbage, *raw(receipt(2))], [])
    assert (stored.counted, stored.unreadable) == (2, 2)
    again = await ledger.put(garbage, [])
    assert again.unreadable == 2
    kept = await ledger.database.read(lambda c: c.execute("SELECT count(*) FROM unreadable").get)
    assert kept == 2


async def test_totals_survive_a_restart(tmp_path: Path) -> None:
    """They are read from the file, not counted from zero."""
    first = Ledger.at(tmp_path)
    await first.open()
    await first.put(raw(receipt(1), receipt(2), receipt(3, id="r1")), [])
    await first.database.close()
    second = Ledger.at(tmp_path)
    await second.open()
    assert second.totals == Totals(3, 2)
    await second.database.close()


async def test_when_a_combination_was_in_use(ledger: Ledger) -> None:
    """The first and last receipt that named it; newest first, none from after the instant."""
    other = "sha256:" + "b" * 64
    await ledger.put(
        raw(receipt(1, at_us=10), receipt(2, at_us=30), receipt(3, at_us=20, snapshot=other)),
        [combination(), combination(other), combination("sha256:" + "c" * 64, "n")],
    )
    await ledger.put(raw(receipt(4, at_us=5)), [])
    used = await ledger.combinations("m", 25)
    assert [(one.combination.lineage.snapshot, one.first_us, one.last_us) for one in used] == [
        (other, 20, 20),
        (DIGEST, 5, 30),
    ]
    assert [one.first_us for one in await ledger.combinations("m", 19)] == [5]
    assert await ledger.combinations("n", 10**15) == []


async def test_a_shipment_gives_way_between_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To whoever waits for this core: at least once every 64 receipts, also of those that are none,
    and before and after the indexes are swept."""
    given: list[None] = []
    monkeypatch.setattr(receipts, "_give_way", lambda: given.append(None))
    ledger = Ledger.at(tmp_path)
    await ledger.open()
    try:
        for number, bodies in enumerate(
            (raw(*map(receipt, range(512))), [msgspec.Raw(b"1")] * 512)
        ):
            before = len(given)
            await ledger.put(bodies, [combination()] if number == 0 else [])
            assert len(given) - before >= 512 // 64 + 3
        assert ledger.totals == Totals(512, 512)
    finally:
        await ledger.database.close()
