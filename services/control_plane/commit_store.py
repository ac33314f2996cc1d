"""policy.db: the commit log on the disk. Only appends; decides nothing.

The triggers keep a mistake of ours from rewriting the log; the hash chain shows anybody else's.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import apsw

from contracts.limits import page_items_max
from contracts.policies import VERSION_0, PolicySet
from contracts.types import UNSET
from services.control_plane.chain import Entry, StoredEntry, Verdict, load, replay, verify
from services.control_plane.connection import Schema
from services.control_plane.database import Database

T = TypeVar("T")
NAME = "policy.db"
_COLUMNS = "version, CAST(hash AS TEXT), CAST(content AS BLOB)"
"""Cast, because whoever tampers may also change a value's type."""
_ballast_bytes = 2 * 1024 * 1024
SCHEMA = Schema(
    application_id=0x6D_70_6F_6C,  # "mpol"
    migrations=(
        """
        CREATE TABLE commits (
            version INTEGER PRIMARY KEY, hash TEXT NOT NULL, content BLOB NOT NULL
        );
        CREATE TRIGGER commits_are_never_updated BEFORE UPDATE ON commits
            BEGIN SELECT RAISE(ABORT, 'the log is append only'); END;
        CREATE TRIGGER commits_are_never_deleted BEFORE DELETE ON commits
            BEGIN SELECT RAISE(ABORT, 'the log is append only'); END;
        CREATE TABLE epoch (id INTEGER PRIMARY KEY CHECK (id = 1), epoch INTEGER NOT NULL);
        INSERT INTO epoch VALUES (1, 1);
        """,
    ),
)


class CommitStore:
    """The log: `append` writes, everything else reads pages."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def at(cls, folder: Path, vfs: str | None = None) -> "CommitStore":
        """The store of a home's `.mortise/` folder, not opened yet."""
        return cls(Database(folder / NAME, SCHEMA, ballast_bytes=_ballast_bytes, vfs=vfs))

    async def append(self, entry: StoredEntry) -> None:
        """Add the entry after the last one; on the disk when this returns."""

        def work(connection: apsw.Connection) -> None:
            connection.execute(
                "INSERT INTO commits VALUES (?, ?, ?)", (entry.version, entry.hash, entry.content)
            )

        await self.database.write(work)

    async def page(self, after: int, limit: int = page_items_max) -> list[StoredEntry]:
        """Up to `limit` entries with higher versions, oldest first."""
        return await self.database.read(lambda connection: list(_page(connection, after, limit)))

    async def last(self) -> StoredEntry | None:
        """The newest entry."""
        return await self.database.read(lambda connection: next(_newest_first(connection), None))

    async def verify(self) -> Verdict:
        """Walk the whole chain, a page at a time."""
        verdict = Verdict()
        while True:
            before = verdict.commits

            def work(connection: apsw.Connection, so_far: Verdict = verdict) -> Verdict:
                return verify(_page(connection, so_far.commits, page_items_max), so_far)

            verdict = await self.database.read(work)
            if verdict.broken_at is not UNSET or verdict.commits < before + page_items_max:
                return verdict

    async def replay(
        self, *, version: int | None = None, instant_us: int | None = None
    ) -> PolicySet:
        """The set in force at a version or an instant, else the newest; a page at a time."""
        policies = VERSION_0
        while True:

            def work(connection: apsw.Connection, since: PolicySet = policies) -> PolicySet:
                page = _page(connection, since.version, page_items_max)
                return replay(page, version=version, instant_us=instant_us, since=since)

            before, policies = policies.version, await self.database.read(work)
            if policies.version < before + page_items_max:
                return policies

    async def newest(self, choose: Callable[[Entry], T | None]) -> T | None:
        """The first answer of `choose` over the entries, newest first."""

        def work(connection: apsw.Connection) -> T | None:
            answers = (choose(load(stored)) for stored in _newest_first(connection))
            return next((answer for answer in answers if answer is not None), None)

        return await self.database.read(work)

    async def signatures(self, digest: str) -> list[StoredEntry]:
        """The entries that sign this digest, oldest first; found by their text, so that nothing
        beside the log has to be kept."""

        def work(connection: apsw.Connection) -> list[StoredEntry]:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM commits WHERE instr(CAST(content AS TEXT), ?) > 0"
                " ORDER BY version",
                (digest,),
            )
            return [stored for row in rows if _signs(stored := StoredEntry(*row), digest)]

        return await self.database.read(work)

    async def epoch(self) -> int:
        """The epoch of this database."""
        return await self.database.read(
            lambda connection: int(connection.execute("SELECT epoch FROM epoch").get)
        )

    async def raise_epoch(self, epoch: int) -> None:
        """Begin a new epoch: instances know commits that this log does not have."""

        def work(connection: apsw.Connection) -> None:
            connection.execute("UPDATE epoch SET epoch = max(epoch, ?)", (epoch,))

        await self.database.write(work)


def _signs(stored: StoredEntry, digest: str) -> bool:
    """A page may be mentioned by other entries, as in their reason."""
    signed = load(stored).signed
    return signed is not UNSET and signed.digest == digest


def _page(connection: apsw.Connection, after: int, limit: int) -> Iterator[StoredEntry]:
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM commits WHERE version > ? ORDER BY version LIMIT ?",
        (after, limit),
    )
    return (StoredEntry(*row) for row in rows)


def _newest_first(connection: apsw.Connection) -> Iterator[StoredEntry]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM commits ORDER BY version DESC")
    return (StoredEntry(*row) for row in rows)
