"""The tables of ledger.db, from one version of the file to the next."""

import apsw
import msgspec

from services.control_plane.receipts import group_receipts_max, put_receipts
from services.control_plane.recent import Recent

_ROWS = """
    CREATE TABLE receipts (
        number INTEGER PRIMARY KEY, trace BLOB NOT NULL, content INTEGER NOT NULL,
        body BLOB NOT NULL
    );
    CREATE UNIQUE INDEX receipts_by_trace ON receipts (trace, content);
    CREATE TABLE requests (
        request BLOB PRIMARY KEY, answers INTEGER NOT NULL, billed INTEGER NOT NULL,
        is_ok INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE combinations (
        snapshot TEXT PRIMARY KEY, model TEXT NOT NULL, first_us INTEGER NOT NULL,
        last_us INTEGER NOT NULL, body BLOB NOT NULL
    );
    CREATE INDEX combinations_by_model ON combinations (model, first_us);
    CREATE TABLE totals (
        id INTEGER PRIMARY KEY CHECK (id = 1), receipts INTEGER NOT NULL,
        requests INTEGER NOT NULL
    );
    INSERT INTO totals VALUES (1, 0, 0);
    CREATE TABLE unreadable (content INTEGER PRIMARY KEY, body BLOB NOT NULL);
"""
_GROUPS = """
    CREATE TABLE groups (
        first INTEGER PRIMARY KEY, count INTEGER NOT NULL, bodies BLOB NOT NULL
    );
    CREATE TABLE recent (
        first INTEGER PRIMARY KEY, requests BLOB NOT NULL, traces BLOB NOT NULL
    );
    CREATE TABLE requests (key INTEGER PRIMARY KEY, number INTEGER NOT NULL);
    CREATE TABLE traces (
        key INTEGER NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (key, number)
    ) WITHOUT ROWID;
    CREATE TABLE repeated (
        request BLOB PRIMARY KEY, answers INTEGER NOT NULL, billed INTEGER NOT NULL,
        is_ok INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE answers (
        request BLOB NOT NULL, content INTEGER NOT NULL, PRIMARY KEY (request, content)
    ) WITHOUT ROWID;
    ALTER TABLE totals ADD COLUMN puts INTEGER NOT NULL DEFAULT 0;
    UPDATE totals SET receipts = 0, requests = 0;
"""


def _group(connection: apsw.Connection) -> None:
    """Version 1 had a row and two index entries for each receipt. They are put again in the order
    in which they came, so that the same requests are counted and the same answers billed."""
    connection.execute("ALTER TABLE receipts RENAME TO receipts_1; DROP TABLE requests")
    connection.execute(_GROUPS)
    recent = Recent()
    last: int = connection.execute("SELECT coalesce(max(number), 0) FROM receipts_1").get
    for begin in range(0, last, group_receipts_max):
        rows = connection.execute(
            "SELECT body FROM receipts_1 WHERE number > ? AND number <= ? ORDER BY number",
            (begin, begin + group_receipts_max),
        )
        bodies: list[bytes] = [body for (body,) in rows]
        put_receipts(connection, [msgspec.Raw(body) for body in bodies], recent)
    connection.execute("DROP TABLE receipts_1")


MIGRATIONS = (_ROWS, _group)
"""Number n leads from user_version n to n + 1."""
