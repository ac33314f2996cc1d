"""Connections that only read, in threads of their own: bounded snapshots, a gate for the writer."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw

from contracts.errors import MeshError
from services.control_plane.connection import bound_time, connect_reader
from services.control_plane.gate import ReadGate
from shared.clock import Clock

T = TypeVar("T")

_readers_max = 2
_read_s_max = 2.0
gate_wait_s = _read_s_max
"""A reader inside is interrupted within this time, so the gate never stays closed longer."""


class Readers:
    """`read` runs work over a connection that nobody else uses meanwhile."""

    def __init__(self, path: Path, clock: Clock, vfs: str | None) -> None:
        self._path = path
        self._clock = clock
        self._vfs = vfs
        self._gate = ReadGate()
        self._idle: list[apsw.Connection] = []
        self._generation = 0
        self._threads = ThreadPoolExecutor(_readers_max, thread_name_prefix=f"{path.stem}-read")

    async def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """See `Database.read`."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, work)

    @contextmanager
    def held_back(self) -> Iterator[bool]:
        """Nobody begins to read; whether nobody is reading. For the writer's thread."""
        with self._gate.closed(gate_wait_s) as is_empty:
            yield is_empty

    def disconnect(self) -> None:
        """Close every connection; one in use is closed when it comes back."""
        with self.held_back():
            self._generation += 1
            while self._idle:
                self._idle.pop().close()

    def shutdown(self) -> None:
        """No more reads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, work: Callable[[apsw.Connection], T]) -> T:
        with self._gate.reading():
            generation = self._generation
            connection = self._borrow()
            ends_s = self._clock.monotonic() + _read_s_max
            bound_time(connection, lambda: self._clock.monotonic() > ends_s)
            try:
                connection.execute("BEGIN")
                return work(connection)
            except apsw.InterruptError as error:
                raise MeshError(
                    "DEADLINE_EXCEEDED",
                    f"a read of {self._path.name} took longer than {_read_s_max} s",
                    details={"hop": "control_plane"},
                ) from error
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if generation == self._generation:
                    self._idle.append(connection)
                else:
                    connection.close()

    def _borrow(self) -> apsw.Connection:
        """A reader that nobody uses; `list.pop` and `append` are atomic."""
        try:
            return self._idle.pop()
        except IndexError:
            return connect_reader(self._path, self._vfs)
