"""A folder for sockets, short enough for sun_path."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def socket_path() -> Iterator[str]:
    """A path for one socket; its folder is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    yield str(folder / "s.sock")
    shutil.rmtree(folder)
