"""A file that holds room on the disk, freed when the disk is full so that the database can close
its transaction and go on being read. Blocks on the disk.
"""

import os
from pathlib import Path


class Ballast:
    """`bytes_wanted` of real blocks in one file."""

    def __init__(self, path: Path, bytes_wanted: int) -> None:
        self._path = path
        self.bytes_wanted = bytes_wanted

    def fill(self) -> bool:
        """Take the room; False when the disk does not have it and as much again to spare."""
        if not self._has_room():
            return False
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self.bytes_wanted)
        except OSError:
            self.free()
            return False
        finally:
            os.close(descriptor)
        return True

    def free(self) -> None:
        """Give the room back."""
        self._path.unlink(missing_ok=True)

    def _has_room(self) -> bool:
        if self._path.exists() and self._path.stat().st_blocks * 512 >= self.bytes_wanted:
            return True
        disk = os.statvfs(self._path.parent)
        return disk.f_bavail * disk.f_frsize >= 2 * self.bytes_wanted
