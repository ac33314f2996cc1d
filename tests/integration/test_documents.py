"""Every command in a document runs: fenced `sh` blocks, in order, in a folder of their own."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md")),
]
ELSEWHERE = {
    "make test": "runs this very test",
    "make check": "is the first half of make test",
}
"""Commands that are not run here, with the reason."""


def commands(document: Path) -> list[str]:
    """The lines of a document's `sh` blocks, comments cut off."""
    blocks = re.findall(r"^```sh\n(.*?)^```", document.read_text(), re.M | re.S)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and line not in ELSEWHERE]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short temporary folder with links to what a document may name; its meshes are stopped."""
    path = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    for entry in ROOT.iterdir():
        if entry.name not in {".git", "demo"}:
            (path / entry.name).symlink_to(entry)
    yield path
    for home in path.glob("*/mortise.toml"):
        subprocess.run(
            [Path(sys.executable).parent / "mortise", "stop", "--home", home.parent],
            check=False, capture_output=True, timeout=60,
        )  # fmt: skip
    shutil.rmtree(path, ignore_errors=True)


def test_there_are_commands_to_run() -> None:
    """The documents hold commands at all, so that the next test checks something."""
    assert sum(len(commands(document)) for document in DOCUMENTS) >= 5


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "document", [path for path in DOCUMENTS if commands(path)], ids=lambda path: path.name
)
def test_every_command_of_a_document_runs(document: Path, folder: Path) -> None:
    """A reader who types a document's commands one after the other sees each succeed."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    script = "\n".join(["set -e", *commands(document)])
    ran = subprocess.run(
        ["bash", "-xc", script], cwd=folder, env=environment,
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, f"{document.name}: {ran.stdout[-2000:]}\n{ran.stderr[-3000:]}"
