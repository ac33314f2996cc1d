"""A log file that several processes append to: a writer thread, a bounded queue, rotation.

Records are appended with O_APPEND in whole batches, so lines of two processes never mix. Who finds
the file full rotates it under a flock; the others notice the new inode and reopen. The caller
never waits: what does not fit into the queue, or on the disk, is dropped and counted.
"""

import errno
import fcntl
import os
import threading
from collections import deque
from pathlib import Path

import msgspec

queue_records_max = 8_192
batch_bytes_max = 256 * 1024
flush_s_max = 2.0
"""How long closing may wait for the disk."""
_idle_wait_s = 0.2
"""Records wait at most this long: a wake-up for each would cost more than the write."""


class LogFile:
    """Appends lines to `path`, keeping `files_max` files of about `bytes_max` each: `path`,
    `path.1` (the newest old one) … Start it after any fork: it owns a thread."""

    def __init__(self, path: Path, *, bytes_max: int, files_max: int) -> None:
        self._path = path
        self._bytes_max, self._files_max = bytes_max, files_max
        self._lines: deque[bytes] = deque()
        self._fd = -1
        self._torn = False
        self._wake = threading.Event()
        self._closing = False
        self.dropped = 0
        self._dropped_told = 0
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        """Queue one line that ends with a newline; never blocks. Any thread may call it."""
        if len(self._lines) >= queue_records_max:
            self.dropped += 1
            return
        self._lines.append(line)
        if len(self._lines) >= queue_records_max // 2:
            self._wake.set()

    def close(self) -> None:
        """Write what is queued, waiting at most `flush_s_max`."""
        self._closing = True
        self._wake.set()
        self._thread.join(flush_s_max)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(_idle_wait_s)
            self._wake.clear()
            self._write_queued()
        self._write_queued()
        self._close_file()

    def _write_queued(self) -> None:
        """Write what waits; what cannot be written is dropped, and told once it can be."""
        dropped = self.dropped
        if dropped != self._dropped_told:
            if not self._append([_drop_record(dropped - self._dropped_told)]):
                return
            self._dropped_told = dropped
        while self._lines:
            batch, size = [], 0
            while self._lines and size < batch_bytes_max:
                batch.append(self._lines.popleft())
                size += len(batch[-1])
            if not self._append(batch):
                self.dropped += len(batch)
                return

    def _append(self, batch: list[bytes]) -> bool:
        try:
            self._write(b"".join(batch))
        except OSError:
            self._close_file()
            return False
        return True

    def _write(self, block: bytes) -> None:
        self._open_current(len(block))
        if self._torn:
            block = b"\n" + block
        written = os.write(self._fd, block)
        self._torn = written < len(block)
        if self._torn:
            raise OSError(errno.ENOSPC, "short write")

    def _open_current(self, coming_bytes: int) -> None:
        if self._fd >= 0 and self._is_replaced():
            self._close_file()
        if self._fd < 0:
            self._open()
        size = os.fstat(self._fd).st_size
        if size > 0 and size + coming_bytes > self._bytes_max:
            self._rotate()

    def _open(self) -> None:
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _is_replaced(self) -> bool:
        try:
            return os.stat(self._path).st_ino != os.fstat(self._fd).st_ino
        except FileNotFoundError:
            return True

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _rotate(self) -> None:
        lock = os.open(f"{self._path}.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._is_replaced():
                self._shift()
        finally:
            os.close(lock)
        self._close_file()
        self._open()

    def _shift(self) -> None:
        for number in range(self._files_max - 1, 0, -1):
            older = self._path if number == 1 else Path(f"{self._path}.{number - 1}")
            if older.exists():
                older.rename(f"{self._path}.{number}")
        if self._files_max == 1:
            self._path.unlink(missing_ok=True)


def _drop_record(count: int) -> bytes:
    record = {"level": "warning", "event": "log_records_dropped", "count": count}
    return msgspec.json.encode(record) + b"\n"
