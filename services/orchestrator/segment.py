"""One file of the spool: records in a shared mapping, so that they survive kill -9 of the writer.

Layout: 64 bytes of header (magic, records acknowledged (u32), where the last of those ends (u32)),
then records: length of the content (u32), its CRC-32 (u32), content; little-endian. Zeros follow
the last one. The file is allocated whole before it is mapped, so that a full disk is an error here
and never SIGBUS at a write. The writer holds an flock: whoever can take it knows that the writer is
gone, and counts the records from the acknowledged ones on.

Survives the process, not the machine: nothing is fsynced.
"""

import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

MAGIC = b"MOSPOOL1"
HEADER_BYTES = 64
_HEAD = struct.Struct("<II")
_pack_head: Final = _HEAD.pack_into
_crc32: Final = crc32
_ACKNOWLEDGED = struct.Struct("<II")
_ACKNOWLEDGED_AT = slice(len(MAGIC), len(MAGIC) + _ACKNOWLEDGED.size)
SIZE_MAX = 2**32 - 1
overhead_bytes: Final = 8
"""What a record takes beside its content: its head."""
assert overhead_bytes == _HEAD.size


_cache_bytes = 1024 * 1024


class SegmentFault(Exception):
    """The file is no segment."""


class Part(NamedTuple):
    """Consecutive records: the last one's number in the file (from 1), where it ends, and what is
    in them."""

    number: int
    end: int
    contents: list[bytes]


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
        assert HEADER_BYTES < size <= SIZE_MAX, "its offsets are u32"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Whoever looks for files of the dead may hold it for an instant, see `claim`.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.posix_fallocate(descriptor, 0, size)
            _cache(descriptor, size)
            segment = cls(path, descriptor, size)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
        segment._map[: len(MAGIC)] = MAGIC
        return segment

    @classmethod
    def claim(cls, path: Path) -> "Segment | None":
        """The file of a dead writer, its records not yet counted (`recover`); None while the writer
        lives, or has not allocated it yet.

        Raises SegmentFault for a file that is no segment, OSError.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        size = os.fstat(descriptor).st_size
        if size == 0:
            os.close(descriptor)
            return None
        magic = os.pread(descriptor, len(MAGIC), 0)
        if not HEADER_BYTES < size <= SIZE_MAX or magic not in (MAGIC, bytes(len(MAGIC))):
            os.close(descriptor)
            raise SegmentFault(f"{path.name} does not begin with {MAGIC!r}")
        segment = cls(path, descriptor, size)
        segment._seek_unacknowledged()
        return segment

    def _seek_unacknowledged(self) -> None:
        """Begin to count behind what is acknowledged, if the header can say where that is."""
        count, end = _ACKNOWLEDGED.unpack(self._map[_ACKNOWLEDGED_AT])
        if count and HEADER_BYTES < end <= self.size:
            self.records = self.acknowledged = count
            self.end = self._acknowledged_end = end

    def recover(self, records_max: int) -> bool:
        """Count whole records, at most so many; True when the first that is none was met: that is
        the end."""
        for _ in range(records_max):
            content = self._content_at(self.end)
            if content is None:
                self.is_torn = any(self._map[self.end : self.end + _HEAD.size])
                return True
            self.end += _HEAD.size + len(content)
            self.records += 1
        return False

    def _content_at(self, start: int) -> bytes | None:
        """What a writer may have left at this offset, if it is a whole record."""
        if start + _HEAD.size >= self.size:
            return None
        size, checksum = _HEAD.unpack_from(self._map, start)
        start += _HEAD.size
        if not size or start + size > self.size:
            return None
        content = self._map[start : start + size]
        return content if crc32(content) == checksum else None

    @property
    def is_acknowledged(self) -> bool:
        """Every record is stored elsewhere."""
        return self.acknowledged == self.records

    @property
    def room(self) -> int:
        """Bytes that are still free."""
        return self.size - self.end

    def append(self, content: bytes | bytearray) -> None:
        """Write a record; the caller knows that there is room."""
        size = len(content)
        start = self.end + overhead_bytes
        end = start + size
        assert size > 0 and end <= self.size, "a record is not empty and fits"  # noqa: PT018 — hot
        # The content before its head: a writer killed between them, or within either, leaves
        # zeros, or a wrong CRC.
        self._map[start:end] = content
        _pack_head(self._map, self.end, size, _crc32(content))
        self.end = end
        self.records += 1

    def part(self, records_max: int, bytes_max: int) -> Part:
        """The next records that are not acknowledged, at most so many, the last of them beginning
        within so many bytes; they were checked when they were written or found."""
        contents: list[bytes] = []
        mapped, unpack = self._map, _HEAD.unpack_from
        end = self._acknowledged_end
        bytes_end = end + bytes_max
        number, last = self.acknowledged, min(self.records, self.acknowledged + records_max)
        while number < last and end < bytes_end:
            start = end + overhead_bytes
            end = start + unpack(mapped, end)[0]
            contents.append(mapped[start:end])
            number += 1
        return Part(number, end, contents)

    def acknowledge(self, through: Part) -> None:
        """The records of this part, which begins where the last one ended, are stored elsewhere."""
        assert through.number > self.acknowledged, "acknowledgements do not go back"
        self.acknowledged, self._acknowledged_end = through.number, through.end
        # One store of 8 aligned bytes: no kill comes between the number and its place.
        self._map[_ACKNOWLEDGED_AT] = _ACKNOWLEDGED.pack(through.number, through.end)

    def close(self) -> None:
        """Unmap and unlock; the file stays for the next process."""
        self._map.close()
        os.close(self._descriptor)

    def delete(self) -> None:
        """Close and remove the file."""
        self.path.unlink(missing_ok=True)
        self.close()


def _cache(descriptor: int, size: int) -> None:
    """Read a new file once, without the interpreter's lock: its pages are in the page cache then.

    Else the first stores into it wait 2 to 4 ms for the file system, on the loop's thread.
    """
    buffer = bytearray(_cache_bytes)
    for offset in range(0, size, _cache_bytes):
        os.preadv(descriptor, [buffer], offset)
