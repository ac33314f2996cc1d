"""Receipts that survive: files, recovery, room, shipment."""

import asyncio
import os
import random
import zlib
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from contracts.control import Receipts, ReceiptsStored
from contracts.errors import MeshError
from contracts.types import Empty
from services.orchestrator.combinations import Combined
from services.orchestrator.config import ship_bytes_max, ship_receipts_max
from services.orchestrator.segment import (
    HEADER_BYTES,
    MAGIC,
    Part,
    Segment,
    SegmentFault,
    overhead_bytes,
)
from services.orchestrator.shipping import Shipper, shipment
from services.orchestrator.spool import Spool, receipt_fixed_bytes
from shared.rpc.client import RpcClient
from shared.wire.framing import WALKED_BYTES_MIN

SIZE = 1024 * 1024


def segment(folder: Path, name: str = "a", size: int = SIZE) -> Segment:
    """A new file."""
    return Segment.create(folder / f"{name}.spool", size)


def combined(number: int = 1) -> Combined:
    """A combination with its own snapshot."""
    return Combined(f"snapshot-{number}", Raw(b"\xc0"), msgspec.msgpack.encode({"n": number}))


def receipt(number: int, size: int = 20) -> bytes:
    """An encoded receipt."""
    return msgspec.msgpack.encode([number, "x" * size])


def contents(file: Segment) -> list[bytes]:
    """Its records that are not acknowledged."""
    return file.part(file.records, file.size).contents


def acknowledge(file: Segment, through: int) -> None:
    """Records up to this number are stored elsewhere."""
    part = file.part(through - file.acknowledged, file.size)
    assert part.number == through
    file.acknowledge(part)


class Sent(msgspec.Struct, kw_only=True):
    """A call's body as the control plane gets it, decoded further."""

    spool: str
    through: int
    receipts: list[list[Any]]
    combinations: list[dict[str, int]]


def sent(body: Receipts) -> Sent:
    """Through the wire."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=Sent)


def found_at(path: Path, records_max: int = 1_000) -> Segment:
    """A dead process's file as the next one finds it."""
    found = Segment.claim(path)
    assert found is not None
    while not found.recover(records_max):
        pass
    return found


def reopened(file: Segment) -> Segment:
    """The file as the next process finds it."""
    file.close()
    return found_at(file.path)


def test_records_come_back_after_the_writer_is_gone(tmp_path: Path) -> None:
    """In order, with their numbers."""
    file = segment(tmp_path)
    written = [os.urandom(n) for n in range(1, 50)]
    for content in written:
        file.append(content)
    found = reopened(file)
    assert contents(found) == written
    assert found.part(found.records, found.size).number == 49
    assert not found.is_torn
    found.delete()
    assert not file.path.exists()


def test_a_file_of_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    """The lock says who lives."""
    file = segment(tmp_path)
    assert Segment.claim(file.path) is None
    file.close()
    assert Segment.claim(file.path) is not None


def test_a_file_that_is_being_made_is_left_alone(tmp_path: Path) -> None:
    """One without a byte may belong to a standby that is about to lock it; one that its maker
    allocated and never wrote to is empty."""
    path = tmp_path / "m.spool"
    path.touch()
    assert Segment.claim(path) is None
    path.write_bytes(bytes(4096))
    assert found_at(path).is_acknowledged


def test_records_are_counted_in_bounded_goes(tmp_path: Path) -> None:
    """At most so many at once, none twice."""
    file = segment(tmp_path)
    for number in range(10):
        file.append(b"%d" % number)
    file.close()
    found = Segment.claim(file.path)
    assert found is not None
    goes = []
    while not found.recover(4):
        goes.append(found.records)
    assert (goes, found.records) == ([4, 8], 10)
    assert contents(found) == [b"%d" % number for number in range(10)]


def test_what_is_acknowledged_is_not_read_again(tmp_path: Path) -> None:
    """Taking over a file costs what is left in it: broken bytes before that do not matter."""
    file = segment(tmp_path)
    for number in range(10):
        file.append(b"%d" % number)
    acknowledge(file, 8)
    file.close()
    with file.path.open("r+b") as raw:
        raw.seek(HEADER_BYTES)
        raw.write(b"\xff" * 8)
    found = found_at(file.path)
    assert (found.records, contents(found)) == (10, [b"8", b"9"])


def test_what_is_no_spool_file_is_refused(tmp_path: Path) -> None:
    """Too short, foreign, a link."""
    for content in (b"x", b"x" * 200, bytes(HEADER_BYTES)):
        path = tmp_path / "f.spool"
        path.write_bytes(content)
        with pytest.raises(SegmentFault):
            Segment.claim(path)
    link = tmp_path / "l.spool"
    link.symlink_to(path)
    with pytest.raises(OSError):  # noqa: PT011 — ELOOP's text is the system's
        Segment.claim(link)


def test_the_disk_is_taken_before_it_is_mapped(tmp_path: Path) -> None:
    """Every block is allocated, so that no later write can meet a full disk."""
    file = segment(tmp_path)
    assert os.stat(file.path).st_blocks * 512 >= SIZE


def test_a_new_file_is_cached_whole_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system's work for a page is done where the file is made, not at the first store."""
    seen: list[tuple[int, int]] = []
    preadv = os.preadv

    def noted(descriptor: int, buffers: list[bytearray], offset: int) -> int:
        seen.append((offset, preadv(descriptor, buffers, offset)))
        return seen[-1][1]

    monkeypatch.setattr(os, "preadv", noted)
    size = 2 * SIZE + 4_096
    segment(tmp_path, size=size)
    assert [start for start, _ in seen] == [0, SIZE, 2 * SIZE]
    assert sum(count for _, count in seen) == size


def test_a_full_disk_is_an_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC from the allocation reaches the caller."""

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        segment(tmp_path)
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_a_torn_tail_costs_at_most_the_record_that_was_being_written(seed: int) -> None:
    """The writer dies at any byte of a record's store: the records before it are whole."""
    rng = random.Random(seed)
    path = Path(f"/dev/shm/mo-spool-{os.getpid()}-{seed}.spool")
    file = Segment.create(path, 64 * 1024)
    try:
        written = [rng.randbytes(rng.randrange(1, 300)) for _ in range(rng.randrange(1, 20))]
        for content in written:
            file.append(content)
        last = rng.randbytes(rng.randrange(2, 300))
        record = len(last).to_bytes(4, "little") + zlib.crc32(last).to_bytes(4, "little") + last
        cut = rng.randrange(len(record))
        end = file.end
        file.close()
        with path.open("r+b") as raw:
            raw.seek(end)
            raw.write(record[:cut])
        found = found_at(path)
        kept = contents(found)
        # Trailing zeros of the record may be there already: then it is whole, not torn.
        assert kept in (written, [*written, last])
        assert found.is_torn is (any(record[:cut][:overhead_bytes]) and kept == written)
        found.close()
    finally:
        path.unlink()


def test_garbage_in_the_file_ends_the_scan(tmp_path: Path) -> None:
    """A length beyond the file, or a wrong checksum, is the end: nothing made up is shipped."""
    for garbage in (b"\xff\xff\xff\x7f" + b"\0" * 4, b"\x03\0\0\0" + b"\0" * 4 + b"abc"):
        file = segment(tmp_path, name=garbage.hex())
        file.append(b"good")
        end = file.end
        file.close()
        with file.path.open("r+b") as raw:
            raw.seek(end)
            raw.write(garbage)
        found = found_at(file.path)
        assert contents(found) == [b"good"]
        assert found.is_torn


def test_acknowledged_records_are_not_sent_again_after_a_restart(tmp_path: Path) -> None:
    """How far the control plane has got stands in the file; it never goes back."""
    file = segment(tmp_path)
    for number in range(10):
        file.append(b"%d" % number)
    acknowledge(file, 6)
    with pytest.raises(AssertionError, match="go back"):
        file.acknowledge(Part(2, 0, []))
    found = reopened(file)
    assert (found.acknowledged, contents(found)) == (6, [b"6", b"7", b"8", b"9"])
    acknowledge(found, 10)
    assert found.is_acknowledged
    assert contents(reopened(found)) == []


def test_an_acknowledgement_without_a_place_counts_for_nothing(tmp_path: Path) -> None:
    """What a header says that does not fit hides no record: they are shipped again."""
    for place in (0, 3, SIZE + 1):
        file = segment(tmp_path, f"p{place}")
        file.append(b"1")
        file.close()
        with file.path.open("r+b") as raw:
            raw.seek(len(MAGIC))
            raw.write((99).to_bytes(4, "little") + place.to_bytes(4, "little"))
        found = found_at(file.path)
        found.append(b"2")
        assert (found.acknowledged, contents(found)) == (0, [b"1", b"2"])


class Files:
    """A spool whose files are made by hand."""

    def __init__(self, folder: Path, **bounds: int) -> None:
        self.folder = folder
        self.made = 0
        self.changes = 0
        self.spool = Spool(self._changed, **{"file_bytes": SIZE, **bounds})

    def _changed(self) -> None:
        self.changes += 1

    def make(self) -> Segment:
        """Make the file that is wanted."""
        assert self.spool.wants_file
        self.made += 1
        file = segment(self.folder, f"f{self.made}")
        self.spool.add(file)
        return file


def refusal(spool: Spool) -> tuple[str, str]:
    """The error of a reservation."""
    with pytest.raises(MeshError) as caught:
        spool.reserve("t", "i", "")
    assert caught.value.retry_after_ms
    return caught.value.name, caught.value.message


def test_a_combination_stands_before_the_first_receipt_that_names_it(tmp_path: Path) -> None:
    """Once a file, and again in the next one: each file can be shipped alone."""
    files = Files(tmp_path)
    first, second = files.make(), files.make()
    for number in range(3):
        files.spool.append(receipt(number), combined())
    files.spool.append(receipt(3), combined(2))
    kinds = "".join(chr(content[0]) for content in contents(first))
    assert kinds == "CRRRCR"
    while files.spool.current is first:
        files.spool.append(receipt(9, 10_000), combined())
    assert [content[:1] for content in contents(second)] == [b"C", b"R"]
    assert files.spool.sealed == [first]


def test_without_a_file_nothing_is_admitted(tmp_path: Path) -> None:
    """DISK_FULL with the reason when the file could not be made; later it works again."""
    files = Files(tmp_path)
    assert refusal(files.spool)[0] == "OVERLOADED"
    files.spool.fault = "No space left on device"
    assert refusal(files.spool) == (
        "DISK_FULL",
        "no room for the receipt: No space left on device",
    )
    assert not files.spool.has_room
    files.make()
    files.spool.reserve("t", "i", "")
    assert files.spool.has_room


def test_a_spool_at_its_bound_refuses_until_the_control_plane_took_a_file(tmp_path: Path) -> None:
    """OVERLOADED names the bound; an acknowledged sealed file gives the room back."""
    files = Files(tmp_path, bytes_max=2 * SIZE)
    first = files.make()
    files.make()
    while not files.spool.sealed:
        files.spool.append(receipt(1, 60_000), combined())
    assert not files.spool.wants_file
    while files.spool.has_room:
        files.spool.reserve("", "", "")
    name, message = refusal(files.spool)
    assert name == "OVERLOADED"
    assert "spool_bytes_max" in message
    acknowledge(first, first.records)
    assert files.spool.drop_acknowledged() == [first]
    assert files.spool.wants_file


def test_what_is_reserved_always_fits(tmp_path: Path) -> None:
    """Requests up to the last reservation are admitted; then every receipt of them is written."""
    files = Files(tmp_path, bytes_max=2 * SIZE)
    files.make()
    files.make()
    admitted = []
    while True:
        try:
            admitted.append(files.spool.reserve("t" * 100, "i" * 100, ""))
        except MeshError:
            break
    assert len(admitted) > 500
    for number, size in enumerate(admitted):
        content = b"x" * (size - overhead_bytes - 1)
        files.spool.append(content, combined(number % 50))
        files.spool.release(size)
    assert files.spool.unacknowledged() >= len(admitted)


def test_the_bound_of_a_receipt_holds_for_the_longest_names(tmp_path: Path) -> None:
    """Four bytes a character for what clients choose."""
    files = Files(tmp_path)
    files.make()
    longest = "\N{MATHEMATICAL DOUBLE-STRUCK CAPITAL A}"
    tenant, request_id, entity = longest * 128, longest * 128, longest * 256
    fixed = ["f" * 32, 2**63, "ok", "m" * 128, "9" * 18, 2**31, "sha256:" + "0" * 64, "fallback"]
    numbers = [True, ["truncated", "frozen", "stale", "infra_mismatch"], *[2**40] * 8]
    hops = [["orchestrator.0-12345678", 2**40, 2**40]] * 3
    encoded = msgspec.msgpack.encode(
        [tenant, request_id, entity, *fixed, *numbers, [2**40] * 8, hops]
    )
    assert len(encoded) + overhead_bytes + 1 <= files.spool.reserve(tenant, request_id, entity)


def test_a_shipment_is_bounded_and_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    """At most so many receipts a call; their combinations travel with them."""
    files = Files(tmp_path)
    file = files.make()
    total = ship_receipts_max + 5
    for number in range(total):
        files.spool.append(receipt(number), combined())
    part = file.part(ship_receipts_max, SIZE)
    body = sent(shipment(file.name, part))
    assert body.spool == file.name
    assert len(body.receipts) == ship_receipts_max - 1
    assert body.combinations == [{"n": 1}]
    assert body.through == ship_receipts_max
    file.acknowledge(part)
    rest = sent(shipment(file.name, file.part(ship_receipts_max, SIZE)))
    assert [number for number, _ in rest.receipts] == list(range(ship_receipts_max - 1, total))
    assert rest.combinations == []


def test_a_shipments_last_record_begins_within_its_bytes(tmp_path: Path) -> None:
    """So a frame is at most one record longer, which keeps it out of the walk of large ones."""
    file = segment(tmp_path)
    for _ in range(20):
        file.append(b"R" + receipt(1, 1_000))
    record = file.part(1, SIZE).end - HEADER_BYTES
    for bytes_max, count in ((0, 0), (1, 1), (record, 1), (record + 1, 2), (30 * record, 20)):
        assert len(file.part(100, bytes_max).contents) == count
    longest = receipt_fixed_bytes + 4 * (128 + 128 + 256)
    heads_and_names = 1_024
    assert ship_bytes_max + longest + heads_and_names < WALKED_BYTES_MIN


class FakeClient:
    """A control plane that stores so many records a call."""

    def __init__(self, stores: int) -> None:
        self.stores = stores
        self.through = 0
        self.sent: list[Any] = []

    async def call(self, _method: str, body: Receipts) -> ReceiptsStored:
        """Store a few."""
        arrived = sent(body)
        self.sent += arrived.receipts[: self.stores]
        self.through = min(arrived.through, self.through + self.stores)
        return ReceiptsStored(through=self.through, counted=self.stores, duplicates=0)


async def test_what_a_control_plane_leaves_over_is_shipped_next(tmp_path: Path) -> None:
    """It says how far it got; the next call begins there, and one that got nowhere ends it."""
    files = Files(tmp_path)
    file = files.make()
    for number in range(10):
        file.append(b"R" + receipt(number))
    client = FakeClient(stores=3)
    shipper = Shipper(files.spool, cast(RpcClient, client), asyncio.Event())
    for shipped in (3, 6, 9, 10):
        await shipper.ship()
        assert (shipper.shipped, file.acknowledged) == (shipped, shipped)
    assert [number for number, _ in client.sent] == list(range(10))
    file.append(b"R" + receipt(10))
    client.stores = 0
    assert not await shipper.ship()
    assert shipper.shipped == 10


async def test_another_call_follows_while_records_wait(tmp_path: Path) -> None:
    """A full call says so; the one that takes the last records does not."""
    files = Files(tmp_path)
    file = files.make()
    for number in range(ship_receipts_max + 1):
        file.append(b"R" + receipt(number))
    client = FakeClient(stores=ship_receipts_max)
    shipper = Shipper(files.spool, cast(RpcClient, client), asyncio.Event())
    assert [await shipper.ship() for _ in range(3)] == [True, False, False]


class RefusingClient:
    """A control plane that answers pings, and receipts with `error`, if any."""

    def __init__(self) -> None:
        self.error: MeshError | None = None
        self.calls: list[str] = []
        self.called = asyncio.Event()

    async def call(self, method: str, body: Any) -> Any:
        """Count, refuse or take everything."""
        self.calls.append(method)
        self.called.set()
        if method == "ping":
            return Empty()
        if self.error is not None:
            raise self.error
        return ReceiptsStored(through=sent(body).through, counted=1, duplicates=0)

    async def turns(self, method: str, times: int) -> None:
        """Until it was called so often more."""
        wanted = self.calls.count(method) + times
        async with asyncio.timeout(10.0):
            while self.calls.count(method) < wanted:
                self.called.clear()
                await self.called.wait()


async def test_a_full_disk_of_the_control_plane_is_not_taken_for_its_absence(
    tmp_path: Path,
) -> None:
    """It answers pings all the while: health says what it answers to receipts, without a pause
    after each ping; whoever does not answer is away; and nothing is said once they get away."""
    files = Files(tmp_path)
    file, client = files.make(), RefusingClient()
    shipper = Shipper(files.spool, cast(RpcClient, client), asyncio.Event())
    shipper.begins.set()
    assert shipper.fault == "the control plane is away", "it has not answered yet"
    task = asyncio.create_task(shipper.run())
    await client.turns("ping", 1)
    assert shipper.fault == ""
    client.error = MeshError("DISK_FULL", "ledger.db: no space is left")
    file.append(b"R" + receipt(1))
    await client.turns("receipts", 1)
    for _ in range(3):
        assert shipper.fault == (
            "the control plane takes no receipts: DISK_FULL: ledger.db: no space is left"
        )
        await client.turns("ping", 1)
    client.error = MeshError("UNAVAILABLE", "nobody there")
    await client.turns("receipts", 1)
    await asyncio.sleep(0)
    assert shipper.fault == "the control plane is away"
    client.error = None
    await client.turns("receipts", 1)
    await asyncio.sleep(0)
    assert (shipper.fault, file.acknowledged) == ("", 1)
    shipper.lost()
    assert shipper.fault == "the control plane is away", "at once, not at the next call's end"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_dead_processes_files_are_shipped_first(tmp_path: Path) -> None:
    """Oldest first; an acknowledged one is given up, the current file never."""
    files = Files(tmp_path)
    files.make()
    old = segment(tmp_path, "old")
    old.append(b"Rx")
    files.spool.adopt(old)
    assert files.spool.oldest() is old
    acknowledge(old, 1)
    assert files.spool.oldest() is None
    assert files.spool.drop_acknowledged() == [old]
    assert files.spool.current is not None
