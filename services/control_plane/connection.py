"""One SQLite connection as both databases use it: pragmas, identity, migrations. Blocks.

Every message of a refusal names the file and the remedy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import apsw

from shared.service import StartRefused

sqlite_version_min = 3_051_003
"""3.51.3 fixed the WAL-reset bug. Source: https://sqlite.org/releaselog/3_51_3.html"""
_busy_timeout_ms = 5_000
_progress_steps = 10_000
"""Steps of SQLite's machine between two looks at the clock: about a millisecond."""

assert sqlite_version_min <= apsw.SQLITE_VERSION_NUMBER, (
    f"SQLite {apsw.sqlite_lib_version()} has the WAL-reset bug; 3.51.3 or newer is needed"
)


class DatabaseError(StartRefused):
    """A database that cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Schema:
    """`application_id` marks the file as ours; migration n, a script or a function, leads from
    user_version n to n + 1;
    `cache_kib` bounds the writer's page cache: a transaction that dirties more pages spills;
    `checkpoint_pages` is the length of the write-ahead log at which it is copied back."""

    application_id: int
    migrations: tuple[str | Callable[[apsw.Connection], None], ...]
    cache_kib: int = 2_048
    checkpoint_pages: int = 1_000


def connect_writer(path: Path, schema: Schema, vfs: str | None = None) -> apsw.Connection:
    """The writing connection, its file created or migrated. Raises DatabaseError."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    try:
        connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
        _configure(connection)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "full")
        connection.pragma("cache_size", -schema.cache_kib)
        connection.pragma("temp_store", "memory")
        connection.wal_autocheckpoint(schema.checkpoint_pages)
        connection.transaction_mode = "IMMEDIATE"
        _migrate(connection, path, schema)
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise DatabaseError(
            f"{path.name} is damaged ({error}); put a copy of it in place, or move it aside with"
            f" its -wal and -shm files to begin anew"
        ) from error
    except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
        raise DatabaseError(
            f"{path.name} cannot be opened for writing ({error}); its folder and file must belong"
            " to the user that runs the mesh"
        ) from error
    return connection


def connect_reader(path: Path, vfs: str | None = None) -> apsw.Connection:
    """A connection that cannot write."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
    _configure(connection)
    connection.pragma("query_only", True)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # it could not write there
    return connection


def bound_time(connection: apsw.Connection, is_over: Callable[[], bool]) -> None:
    """Interrupt statements of this connection once `is_over()`: apsw.InterruptError."""
    connection.set_progress_handler(is_over, _progress_steps)


def _configure(connection: apsw.Connection) -> None:
    connection.set_busy_timeout(_busy_timeout_ms)
    connection.pragma("trusted_schema", False)
    connection.pragma("foreign_keys", True)
    connection.pragma("cell_size_check", True)


def _migrate(connection: apsw.Connection, path: Path, schema: Schema) -> None:
    version = int(str(connection.pragma("user_version")))
    known = len(schema.migrations)
    identity = connection.pragma("application_id")
    is_new = version == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").get == 0
    if not is_new and identity != schema.application_id:
        raise DatabaseError(f"{path.name} is a database of another program; move it aside")
    if version > known:
        raise DatabaseError(
            f"{path.name} has version {version}, this release knows {known}: it was written by a"
            " newer release; start that one, or put back the copy it made before migrating"
        )
    if version == known:
        return
    if not is_new:
        copy = path.with_name(f"{path.name}.v{version}")
        copy.unlink(missing_ok=True)
        connection.execute("VACUUM INTO ?", (str(copy),))
    with connection:
        for migration in schema.migrations[version:]:
            if isinstance(migration, str):
                connection.execute(migration)
            else:
                migration(connection)
        connection.pragma("application_id", schema.application_id)
        connection.pragma("user_version", known)
