"""Which file system a path lies on, and whether SQLite's write-ahead log is safe there.

A WAL is shared memory between the processes of one machine: on a network file system two machines
would each have their own. Source: https://sqlite.org/wal.html, section 1.
"""

import re
from pathlib import Path, PurePosixPath

_ESCAPED = re.compile(r"\\([0-7]{3})")
"""mountinfo writes blanks and control characters as three octal digits."""
NETWORK = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.cephfs",
        "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "fuse.rclone", "fuse.juicefs", "gfs2",
        "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs",
    }
)  # fmt: skip


def filesystem_of(mountinfo: str, path: PurePosixPath) -> str:
    """The type of the file system that holds an absolute path, "" if none of the lines does.

    `mountinfo` is /proc/self/mountinfo; a later line covers an earlier one at the same place.
    Source: proc_pid_mountinfo(5).
    """
    found, found_parts = "", -1
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split()
        if not separator or len(fields) < 5:
            continue
        place = PurePosixPath(_ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4]))
        parts = len(place.parts)
        if parts >= found_parts and path.is_relative_to(place):
            found, found_parts = right.split()[0], parts
    return found


def network_filesystem(path: Path) -> str | None:
    """The type of the network file system that holds the path; None where it is a local one."""
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return None
    kind = filesystem_of(mountinfo, PurePosixPath(path.resolve()))
    return kind if kind in NETWORK else None
