"""The two threads over one file: transactions, a full disk, damage, versions, bounds."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import apsw
import pytest

from contracts.errors import MeshError
from services.control_plane import database as module
from services.control_plane.connection import DatabaseError, Schema
from services.control_plane.database import Database
from services.control_plane.gate import ReadGate
from shared.clock import ManualClock

TABLE = "CREATE TABLE things (name TEXT NOT NULL);"
SCHEMA = Schema(application_id=7, migrations=(TABLE,))
NEWER = Schema(
    application_id=7, migrations=(TABLE, "ALTER TABLE things ADD COLUMN size INTEGER DEFAULT 5;")
)
BALLAST = 64 * 1024


class FaultyVfs(apsw.VFS):
    """The machine's file system, with a disk that is full or breaks when told to."""

    def __init__(self, name: str) -> None:
        self.fault: str = ""
        super().__init__(name, "unix")

    def xOpen(self, name: Any, flags: list[int]) -> "FaultyFile":
        """A file that looks at `fault` before each write."""
        return FaultyFile(self, name, flags)


class FaultyFile(apsw.VFSFile):
    """A file on the faulty disk."""

    def __init__(self, vfs: FaultyVfs, name: Any, flags: list[int]) -> None:
        self._vfs = vfs
        super().__init__("unix", name, flags)

    def xWrite(self, content: bytes, offset: int) -> None:
        """Fails on a full disk."""
        if self._vfs.fault == "full":
            raise apsw.FullError("the disk is full")
        super().xWrite(content, offset)

    def xSync(self, flags: int) -> None:
        """Fails on a broken disk."""
        if self._vfs.fault == "broken":
            error = apsw.IOError("fsync failed")
            error.result = apsw.SQLITE_IOERR
            error.extendedresult = apsw.SQLITE_IOERR_FSYNC
            raise error
        super().xSync(flags)


@pytest.fixture
def vfs() -> Iterator[FaultyVfs]:
    """A registered faulty file system."""
    one = FaultyVfs("faulty")
    yield one
    one.unregister()


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Open databases in one folder, closed at the end."""
    made: list[Database] = []

    async def one(schema: Schema = SCHEMA, **options: Any) -> Database:
        database = Database(tmp_path / "x.db", schema, ballast_bytes=BALLAST, **options)
        made.append(database)
        await database.open()
        return database

    yield one
    for database in made:
        await database.close()


def put(name: str) -> Callable[[apsw.Connection], None]:
    """Work that writes one row."""

    def work(connection: apsw.Connection) -> None:
        connection.execute("INSERT INTO things (name) VALUES (?)", (name,))

    return work


def names(connection: apsw.Connection) -> list[str]:
    """Work that reads all rows."""
    return [name for (name,) in connection.execute("SELECT name FROM things ORDER BY name")]


async def test_pragmas_are_what_durability_needs(make: Callable[..., Any]) -> None:
    """WAL, FULL, our own identity and version."""
    database = await make()

    def work(connection: apsw.Connection) -> list[Any]:
        asked = ("journal_mode", "synchronous", "application_id", "user_version", "trusted_schema")
        return [connection.pragma(name) for name in asked]

    assert await database.write(work) == ["wal", 2, 7, 1, 0]


async def test_work_runs_in_other_threads(make: Callable[..., Any]) -> None:
    """Neither reading nor writing happens on the loop's thread; all writes share one thread."""
    database = await make()
    here = threading.get_ident()
    writers = {await database.write(lambda _c: threading.get_ident()) for _ in range(3)}
    assert len(writers) == 1
    assert here not in writers
    assert await database.read(lambda _c: threading.get_ident()) not in {here, *writers}


async def test_work_that_raises_leaves_nothing(make: Callable[..., Any]) -> None:
    """One transaction: the row before the defect is gone too, and the next write works."""
    database = await make()

    def work(connection: apsw.Connection) -> None:
        put("half")(connection)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.write(work)
    await database.write(put("whole"))
    assert await database.read(names) == ["whole"]


async def test_a_reader_cannot_write(make: Callable[..., Any]) -> None:
    """Its connection refuses."""
    database = await make()
    with pytest.raises(apsw.ReadOnlyError):
        await database.read(put("sneaky"))


async def test_a_long_read_is_interrupted(tmp_path: Path, make: Callable[..., Any]) -> None:
    """A reader that holds its snapshot too long is ended, and says which limit it met."""
    clock = ManualClock()
    database = await make(clock=clock)

    def work(connection: apsw.Connection) -> object:
        clock.advance(2.5)
        return connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1e7)"
            " SELECT count(*) FROM n"
        ).get

    with pytest.raises(MeshError, match=r"longer than 2.0 s"):
        await database.read(work)
    assert await database.read(names) == []


async def test_writes_that_wait_are_bounded(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the limit a write is refused before it is queued; below it goes on afterwards."""
    monkeypatch.setattr(module, "_writes_waiting_max", 2)
    database = await make()
    gate = threading.Event()
    waiting = [asyncio.ensure_future(database.write(lambda _c: gate.wait())) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(MeshError, match="2 writes wait"):
        await database.write(put("one too many"))
    gate.set()
    await asyncio.gather(*waiting)
    await database.write(put("later"))
    assert await database.read(names) == ["later"]


async def test_two_writers_are_refused(make: Callable[..., Any]) -> None:
    """The second process is told what to do; when the first lets go, it may."""
    first = await make()
    with pytest.raises(DatabaseError, match="has a writer already"):
        await make()
    await first.close()
    await make()


async def test_a_full_disk_refuses_writes_and_goes_on_reading(
    make: Callable[..., Any], vfs: FaultyVfs, tmp_path: Path
) -> None:
    """DISK_FULL with a retry hint, nothing half written, the ballast freed first, reads go on;
    when there is room again the ballast comes back and writes work."""
    database = await make(vfs="faulty")
    await database.write(put("before"))
    ballast = tmp_path / "x.db.ballast"
    assert ballast.stat().st_size == BALLAST
    vfs.fault = "full"
    with pytest.raises(MeshError, match=r"the disk of x.db is full") as refusal:
        await database.write(put("lost"))
    assert refusal.value.name == "DISK_FULL"
    assert refusal.value.retry_after_ms
    assert database.is_full
    assert not ballast.exists()
    assert await database.read(names) == ["before"]
    vfs.fault = ""
    await database.write(put("after"))
    assert not database.is_full
    assert ballast.exists()
    assert await database.read(names) == ["after", "before"]


async def test_while_there_is_no_room_for_the_ballast_nothing_is_written(
    make: Callable[..., Any], vfs: FaultyVfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk with a few free bytes does not swing between full and not full."""
    database = await make(vfs="faulty")
    vfs.fault = "full"
    with pytest.raises(MeshError):
        await database.write(put("lost"))
    vfs.fault = ""
    monkeypatch.setattr(database._ballast, "fill", lambda: False)
    with pytest.raises(MeshError, match="nothing was lost"):
        await database.write(put("refused"))
    assert await database.read(names) == []


async def test_a_failed_fsync_ends_the_process(make: Callable[..., Any], vfs: FaultyVfs) -> None:
    """After it the kernel may have dropped pages: going on would be a lie."""
    reasons: list[str] = []

    def die(reason: str) -> NoReturn:
        reasons.append(reason)
        raise SystemExit

    database = await make(vfs="faulty", die=die)
    vfs.fault = "broken"
    with pytest.raises(SystemExit):
        await database.write(put("x"))
    vfs.fault = ""
    assert "fsync" in reasons[0]


@pytest.mark.parametrize("content", [b"garbage" * 1_000, b"SQLite format 3\x00" + b"\xff" * 8_000])
async def test_a_garbage_file_refuses_the_start(
    make: Callable[..., Any], tmp_path: Path, content: bytes
) -> None:
    """The message names the file and the remedy; the file is left as it is."""
    (tmp_path / "x.db").write_bytes(content)
    with pytest.raises(DatabaseError, match=r"x.db is damaged .* put a copy"):
        await make()
    assert (tmp_path / "x.db").read_bytes() == content


async def test_another_programs_database_is_refused(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    """A SQLite file that is not ours is not touched."""
    with sqlite3.connect(tmp_path / "x.db") as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(DatabaseError, match="another program"):
        await make()


async def test_migration_goes_forward_after_a_copy(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    """Rows stay, the new column is there, and the old file lies beside it."""
    old = await make()
    await old.write(put("kept"))
    await old.close()
    new = await make(NEWER)
    assert await new.read(lambda c: c.execute("SELECT name, size FROM things").get) == ("kept", 5)
    with sqlite3.connect(tmp_path / "x.db.v1") as copy:
        assert copy.execute("SELECT * FROM things").fetchall() == [("kept",)]
    copy.close()


async def test_older_code_refuses_a_newer_database(make: Callable[..., Any]) -> None:
    """It names both versions and the way out."""
    await (await make(NEWER)).close()
    with pytest.raises(DatabaseError, match="has version 2, this release knows 1"):
        await make()


async def test_a_failed_migration_changes_nothing(make: Callable[..., Any]) -> None:
    """One transaction: after the failure the old code still opens the file."""
    await (await make()).close()
    broken = Schema(application_id=7, migrations=(*NEWER.migrations, "CREATE TABL oops"))
    with pytest.raises(apsw.SQLError):
        await make(broken)
    again = await make()
    assert await again.read(lambda c: c.pragma("user_version")) == 1


async def test_the_write_ahead_log_is_emptied(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the bound it is truncated with readers held back, and nothing is lost."""
    monkeypatch.setattr(module, "_wal_bytes_max", 100_000)
    database = await make()

    def many(connection: apsw.Connection) -> None:
        rows = ((f"{number:0200d}",) for number in range(2_000))
        connection.executemany("INSERT INTO things (name) VALUES (?)", rows)

    wal = tmp_path / "x.db-wal"
    await asyncio.gather(*(database.write(many) for _ in range(3)), database.read(names))
    assert wal.stat().st_size <= 100_000
    assert len(await database.read(names)) == 6_000


def test_the_gate_waits_for_those_inside_but_not_for_ever() -> None:
    """Closing says whether it is empty; opening lets the waiting ones in."""
    gate, inside, leave = ReadGate(), threading.Event(), threading.Event()
    entered: list[str] = []

    def reader(name: str, hold: bool) -> None:
        with gate.reading():
            entered.append(name)
            inside.set()
            if hold:
                leave.wait()

    first = threading.Thread(target=reader, args=("first", True))
    first.start()
    inside.wait()
    with gate.closed(0.01) as is_empty:
        assert not is_empty
        second = threading.Thread(target=reader, args=("second", False))
        second.start()
        assert entered == ["first"]
    second.join()
    leave.set()
    first.join()
    with gate.closed(5.0) as is_empty:
        assert is_empty
    assert entered == ["first", "second"]


async def test_a_network_file_system_is_refused(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the type and the remedy."""
    monkeypatch.setattr(module, "network_filesystem", lambda _path: "nfs4")
    with pytest.raises(DatabaseError, match=r"on nfs4, a network file system.*local disk"):
        await make()
