"""The engine that defines a feature: DuckDB, locked before it sees any text.

One connection belongs to one thread. It has no file, network or configuration access; relations
come in as Arrow. It has no statement time-out of its own, so each statement runs under a timer
that interrupts it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from services.data_fabric.config import engine_memory_mib, engine_timeout_s

_INCOMING = "incoming"
_SQL_TYPES = {
    "bool": "BOOLEAN",
    "int64": "BIGINT",
    "float64": "DOUBLE",
    "string": "VARCHAR",
    "timestamp": "TIMESTAMPTZ",
}

# In this order: without external access the spill folder can no longer be set, and under the lock
# nothing can. Without the zone a TIMESTAMPTZ is shown and truncated in the host's.
_SETTINGS = (
    "SET TimeZone = 'UTC'",
    "SET temp_directory = ''",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


class EngineFailed(Exception):
    """A statement was refused, failed or took too long; the engine's words are in the message.
    `kind` is "time", "memory", or "statement" for everything else."""

    def __init__(self, message: str, kind: str = "statement") -> None:
        super().__init__(message)
        self.kind = kind


def sql_type(dtype: str) -> str:
    """The engine's name of a dtype."""
    return _SQL_TYPES[dtype]


def quote(name: str) -> str:
    """An identifier that the engine takes literally."""
    return '"' + name.replace('"', '""') + '"'


class Engine:
    """One locked connection, for one thread at a time."""

    def __init__(self, timeout_s: float = engine_timeout_s) -> None:
        self.timeout_s = timeout_s
        self._connection = duckdb.connect(
            ":memory:",
            config={
                # threads = 1 alone still starts eight for asynchronous reads.
                "threads": "1",
                "async_threads": "0",
                "memory_limit": f"{engine_memory_mib}MiB",
                "python_enable_replacements": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            },
        )
        for setting in _SETTINGS:
            self._connection.execute(setting)

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        timer = threading.Timer(self.timeout_s, self._connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        except duckdb.InterruptException as error:
            raise EngineFailed(f"{what} took longer than {self.timeout_s:g} s", "time") from error
        except (duckdb.OutOfMemoryException, MemoryError) as error:
            limit = f"engine_memory_mib is {engine_memory_mib}"
            raise EngineFailed(f"{what} does not fit into memory, {limit}", "memory") from error
        except duckdb.Error as error:
            raise EngineFailed(f"{what}: {error}") from error
        finally:
            timer.cancel()

    def create_table(self, name: str, reader: pa.RecordBatchReader | pa.Table) -> None:
        """A table with exactly the columns of an Arrow stream, which is read to its end."""
        columns = ", ".join(quote(column) for column in reader.schema.names)
        with self._timed(f"loading {name}"):
            self._connection.register(_INCOMING, reader)
            try:
                self._connection.execute(
                    f"CREATE OR REPLACE TABLE {quote(name)} AS SELECT {columns} FROM {_INCOMING}"
                )
            finally:
                self._connection.unregister(_INCOMING)

    def create_table_as(self, name: str, query: str) -> None:
        """A table with the rows of a query."""
        with self._timed(f"materialising {name}"):
            self._connection.execute(f"CREATE OR REPLACE TABLE {quote(name)} AS {query}")

    def drop_table(self, name: str) -> None:
        """Free a table's memory."""
        with self._timed(f"dropping {name}"):
            self._connection.execute(f"DROP TABLE IF EXISTS {quote(name)}")

    def register(self, name: str, source: object) -> None:
        """Name an Arrow object; it is read each time a query asks for it."""
        with self._timed(f"registering {name}"):
            self._connection.register(name, source)

    def query(self, sql: str, what: str = "the query") -> pa.Table:
        """Every row of a query's result. An unfinished result would block the connection."""
        with self._timed(what):
            return self._connection.sql(sql).to_arrow_table()

    def prepare(self, name: str, sql: str) -> None:
        """A statement that `query(f"EXECUTE {name}")` runs without planning it anew."""
        with self._timed(f"preparing {name}"):
            self._connection.execute(f"PREPARE {name} AS {sql}")

    def close(self) -> None:
        """Give the connection's memory back."""
        self._connection.close()
