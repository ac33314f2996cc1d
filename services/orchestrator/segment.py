"""One file of the spool: records in a shared mapping, so that they survive kill -9 of the writer.

Layout: 64 bytes of header (magic, records acknowledged), then records: length of the content (u32),
its CRC-32 (u32), content; little-endian. Zeros follow the last one. The file is allocated whole
before it is mapped, so that a full disk is an error here and never SIGBUS at a write. The writer
holds an flock: whoever can take it knows that the writer is gone.

Survives the process, not the machine: nothing is fsynced.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

MAGIC = b"MOSPOOL1"
HEADER_BYTES = 64
_HEAD = struct.Struct("<II")
_ACKNOWLEDGED = struct.Struct("<Q")
_ACKNOWLEDGED_AT = len(MAGIC)
overhead_bytes = _HEAD.size
"""What a record takes beside its content."""


class SegmentFault(Exception):
    """The file is no segment."""


class Entry(NamedTuple):
    """A record: its number in the file (from 1), where it ends, its content."""

    number: int
    end: int
    content: bytes


class Segment:
    """A mapped file. `records` are in it, `acknowledged` of them are stored elsewhere; `end` is
    where the next one goes; `is_torn` says that the writer died within a record."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.name = path.stem
        self.records = 0
        self.acknowledged = 0
        self.end = HEADER_BYTES
        self.size = size
        self.is_torn = False
        self._acknowledged_end = HEADER_BYTES
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, size)

    @classmethod
    def create(cls, path: Path, size: int) -> "Segment":
        """A new empty file of exactly `size` bytes, locked. Raises OSError, ENOSPC for one."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(descriptor, 0, size)
            segment = cls(path, descriptor, size)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
        segment._map[: len(MAGIC)] = MAGIC
        return segment

    @classmethod
    def adopt(cls, path: Path) -> "Segment | None":
        """The file of a dead writer, its records counted; None while the writer lives.

        Raises SegmentFault for a file that is no segment, OSError.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        size = os.fstat(descriptor).st_size
        if size < HEADER_BYTES or os.pread(descriptor, len(MAGIC), 0) != MAGIC:
            os.close(descriptor)
            raise SegmentFault(f"{path.name} does not begin with {MAGIC!r}")
        segment = cls(path, descriptor, size)
        segment._recover()
        return segment

    def _recover(self) -> None:
        (acknowledged,) = _ACKNOWLEDGED.unpack_from(self._map, _ACKNOWLEDGED_AT)
        for number, end, _ in self.entries():
            self.records, self.end = number, end
            if number <= acknowledged:
                self.acknowledged, self._acknowledged_end = number, end
        self.is_torn = any(self._map[self.end : self.end + _HEAD.size])

    @property
    def is_acknowledged(self) -> bool:
        """Every record is stored elsewhere."""
        return self.acknowledged == self.records

    @property
    def room(self) -> int:
        """Bytes that are still free."""
        return self.size - self.end

    def append(self, content: bytes) -> None:
        """Write a record; the caller knows that there is room."""
        size = len(content)
        end = self.end + _HEAD.size + size
        assert size > 0 and end <= self.size, "a record is not empty and fits"  # noqa: PT018 — hot
        # One store of head and content: a writer killed within it leaves a wrong CRC.
        head = _HEAD.pack(size, crc32(content))
        self._map[self.end : end] = head + content
        self.end = end
        self.records += 1

    def entries(self) -> Iterator[Entry]:
        """The whole records that are not acknowledged, in order."""
        number, start = self.acknowledged, self._acknowledged_end
        while start + _HEAD.size < self.size:
            size, checksum = _HEAD.unpack_from(self._map, start)
            end = start + _HEAD.size + size
            if not size or end > self.size:
                return
            content = self._map[start + _HEAD.size : end]
            if crc32(content) != checksum:
                return
            number += 1
            yield Entry(number, end, content)
            start = end

    def acknowledge(self, through: int) -> None:
        """Records up to `through` are stored elsewhere; never goes back."""
        for number, end, _ in self.entries():
            if number > through:
                break
            self.acknowledged, self._acknowledged_end = number, end
        _ACKNOWLEDGED.pack_into(self._map, _ACKNOWLEDGED_AT, self.acknowledged)

    def close(self) -> None:
        """Unmap and unlock; the file stays for the next process."""
        self._map.close()
        os.close(self._descriptor)

    def delete(self) -> None:
        """Close and remove the file."""
        self.path.unlink(missing_ok=True)
        self.close()
