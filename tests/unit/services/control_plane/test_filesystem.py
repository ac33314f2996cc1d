"""Which file system a path lies on."""

from pathlib import Path, PurePosixPath

import pytest

from services.control_plane.filesystem import filesystem_of, network_filesystem

MOUNTS = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
40 21 0:30 / /srv rw,relatime - nfs4 server:/export rw
41 40 0:31 / /srv/local rw - xfs /dev/sdb1 rw
42 21 0:32 / /with\\040blank rw,relatime master:3 - fuse.sshfs me@host: rw
43 21 0:33 / /srvx rw - tmpfs tmpfs rw
44 21 0:34 / /twice rw - nfs server:/a rw
45 21 0:35 / /twice rw - tmpfs tmpfs rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me", "ext4"),
        ("/srv/mesh/.mortise", "nfs4"),
        ("/srv/local/mesh", "xfs"),
        ("/srvx/mesh", "tmpfs"),
        ("/with blank/mesh", "fuse.sshfs"),
        ("/twice/mesh", "tmpfs"),
    ],
)
def test_the_deepest_and_latest_mount_counts(path: str, kind: str) -> None:
    """The mount that covers the path, blanks in names included."""
    assert filesystem_of(MOUNTS, PurePosixPath(path)) == kind


def test_nothing_mounted_is_nothing_known() -> None:
    """An empty table names no type."""
    assert filesystem_of("", PurePosixPath("/")) == ""


def test_a_local_disk_is_fine(tmp_path: Path) -> None:
    """The place where tests write is no network file system."""
    assert network_filesystem(tmp_path) is None
