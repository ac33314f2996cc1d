"""Toy servers in their own processes."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.wire.toy import Toy


@pytest.fixture(scope="module")
def start_toy() -> Iterator[Callable[..., Toy]]:
    """Starts toys; stops those that still run at the end of the module."""
    started: list[Toy] = []
    folders: list[Path] = []

    def start(*arguments: str) -> Toy:
        folders.append(Path(tempfile.mkdtemp(prefix="mo", dir="/tmp")))
        started.append(Toy(folders[-1], *arguments))
        return started[-1]

    yield start
    for toy in started:
        if toy.process.poll() is None:
            toy.stop()
    for folder in folders:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def toy(start_toy: Callable[..., Toy]) -> Toy:
    """One server for the module."""
    return start_toy()
