"""One database file: a thread that writes, a few that read, none of them the loop's.

Invariants: one process writes (flock); each write is one immediate transaction; the write-ahead
log stays bounded; a full disk refuses writes with DISK_FULL while reads go on. Knows no table.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, TypeVar

import apsw

from contracts.errors import MeshError
from services.control_plane.ballast import Ballast
from services.control_plane.connection import DatabaseError, Schema, connect_writer
from services.control_plane.filesystem import network_filesystem
from services.control_plane.readers import Readers
from shared import logs
from shared.clock import SYSTEM, Clock

log = logs.get("services.control_plane.database")
T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

_writes_waiting_max = 256
_wal_bytes_max = 32 * 1024 * 1024
_full_retry_ms = 2_000
_FULL = (apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMMAP)
"""Where a full disk shows as an I/O error: the shared-memory file cannot grow."""
EXIT_IO = 74


def _die(reason: str) -> NoReturn:
    log.critical("database_fatal", reason=reason)
    os._exit(EXIT_IO)


class Database:
    """`path` with its schema. `open` and `close` frame everything; `write` and `read` run a
    function over a connection in the writer's or a reader's thread."""

    def __init__(
        self,
        path: Path,
        schema: Schema,
        *,
        ballast_bytes: int,
        clock: Clock = SYSTEM,
        vfs: str | None = None,
        die: Callable[[str], NoReturn] = _die,
    ) -> None:
        self.path = path
        self.is_full = False
        self._schema = schema
        self._vfs = vfs
        self._die = die
        self._ballast = Ballast(path.with_name(f"{path.name}.ballast"), ballast_bytes)
        self._readers = Readers(path, clock, vfs)
        self._waiting = 0
        self._is_closed = False
        self._lock_descriptor = -1
        self._writer: apsw.Connection | None = None
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix=f"{path.stem}-write")

    async def open(self) -> None:
        """Lock, create or migrate. Raises DatabaseError."""
        await asyncio.get_running_loop().run_in_executor(self._write_thread, self._open)

    async def close(self) -> None:
        """Finish what waits, empty the write-ahead log and let go of the file; once."""
        if self._is_closed:
            return
        self._is_closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._write_thread, self._close)
        self._write_thread.shutdown(wait=False)
        self._readers.shutdown()

    async def write(self, work: Work[T]) -> T:
        """Run `work` in one transaction: all of it is on the disk, or nothing.

        Raises OVERLOADED, DISK_FULL, and what `work` raises.
        """
        if self._waiting >= _writes_waiting_max:
            raise MeshError(
                "OVERLOADED",
                f"{self._waiting} writes wait for {self.path.name}, the limit is"
                f" {_writes_waiting_max}",
                retry_after_ms=100,
                details={"reason": "waiting"},
            )
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._write_thread, self._transact, work)
        finally:
            self._waiting -= 1

    async def read(self, work: Work[T]) -> T:
        """Run `work` over a connection that cannot write, in one snapshot of ≤ 2 s.

        `work` fetches a page or one row: each step gives the interpreter away, so thousands of
        rows beside a busy loop take long. Raises DEADLINE_EXCEEDED, and what `work` raises.
        """
        return await self._readers.read(work)

    # --- the writer's thread

    def _open(self) -> None:
        kind = network_filesystem(self.path.parent)
        if kind is not None:
            raise DatabaseError(
                f"{self.path.name} would lie on {kind}, a network file system, where SQLite's"
                " write-ahead log is not safe; move the home to a local disk"
            )
        lock = os.open(
            self.path.with_name(f"{self.path.name}.lock"),
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
            0o600,
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise DatabaseError(
                f"{self.path.name} has a writer already: another control plane runs in this home;"
                " stop it with: mortise stop"
            ) from error
        self._lock_descriptor = lock
        self._ballast.fill()
        try:
            self._writer = connect_writer(self.path, self._schema, self._vfs)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        self._disconnect()
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1

    def _disconnect(self, *, checkpoint: bool = True) -> None:
        """Close every connection."""
        self._readers.disconnect()
        if self._writer is not None:
            self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, not checkpoint)
            self._writer.close()
            self._writer = None

    def _transact(self, work: Work[T]) -> T:
        self._require_room()
        assert self._writer is not None, "the database is open"
        connection = self._writer
        try:
            connection.execute("BEGIN IMMEDIATE")
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if isinstance(error, apsw.FullError | apsw.IOError):
                self._judge(error)
            raise
        self._bound_wal(connection)
        return result

    def _judge(self, error: apsw.Error) -> NoReturn:
        """On a full disk make room and raise DISK_FULL. Any other I/O error ends the process: it
        is not known what is on the disk (after a failed fsync the kernel may have dropped the
        pages), and a new process reads it again."""
        code = int(getattr(error, "extendedresult", 0))
        if not isinstance(error, apsw.FullError) and code not in _FULL:
            self._die(f"{self.path.name}: {error}")
        self.is_full = True
        self._ballast.free()
        self._disconnect(checkpoint=False)
        raise self._refusal() from error

    def _require_room(self) -> None:
        """After the disk was full, write again only when the ballast is back; over new
        connections, because one that met the full disk can stay broken."""
        if not self.is_full:
            return
        if not self._ballast.fill():
            raise self._refusal()
        self._writer = connect_writer(self.path, self._schema, self._vfs)
        self.is_full = False
        log.info("disk_has_room", database=self.path.name)

    def _refusal(self) -> MeshError:
        return MeshError(
            "DISK_FULL",
            f"the disk of {self.path.name} is full; free at least"
            f" {2 * self._ballast.bytes_wanted // 2**20 or 1} MiB there, nothing was lost",
            retry_after_ms=_full_retry_ms,
        )

    def _bound_wal(self, connection: apsw.Connection) -> None:
        """Empty a write-ahead log that overlapping readers let grow, with readers held back."""
        try:
            size = self.path.with_name(f"{self.path.name}-wal").stat().st_size
        except FileNotFoundError:
            return
        if size <= _wal_bytes_max:
            return
        with self._readers.held_back() as is_empty:
            try:
                if is_empty:
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.Error as error:  # the write before it is on the disk all the same
                log.warning("wal_not_truncated", database=self.path.name, reason=str(error))
        log.info("wal_truncated", database=self.path.name, wal_bytes=size, is_empty=is_empty)
