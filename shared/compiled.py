"""The compiled twins of modules: loaded instead of their sources where a build of exactly these
sources exists, so that a stale build is never used.

`services.jobs.compile` makes the build. What runs is the same either way, only slower from source.
Imports the standard library only: it runs before everything else in a process.
"""

import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

PLACE = Path("build") / "compiled"
"""Of a build, below the folder that our packages are imported from."""
INDEX = "index.json"
INTERPRETED = "MORTISE_INTERPRETED"
"""Set to anything: run from source although there is a build."""


@dataclass(frozen=True, slots=True)
class Build:
    """A build: `tag` is the interpreter's, `sources` the SHA-256 of each source by its path below
    the tree, `modules` the file of each module below `folder`."""

    folder: Path
    tag: str
    sources: Mapping[str, str]
    modules: Mapping[str, str]

    @classmethod
    def read(cls, tree: Path) -> "Build | None":
        """The build of this tree, current or not; None where there is none."""
        folder = tree / PLACE
        try:
            index = json.loads((folder / INDEX).read_bytes())
            return cls(folder, index["tag"], index["sources"], index["modules"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def fault(self, tree: Path) -> str | None:
        """Why it is not to be used: another interpreter's, or a source that has changed since."""
        if self.tag != tag():
            return f"it was made for {self.tag}, this interpreter is {tag()}"
        for path, digest in self.sources.items():
            if digest_of(tree / path) != digest:
                return f"{path} has changed since"
        for file in self.modules.values():
            if not (self.folder / file).is_file():
                return f"{file} is missing"
        return None

    def write(self) -> None:
        """Write the index; the files are there already."""
        index = {"tag": self.tag, "sources": self.sources, "modules": self.modules}
        (self.folder / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of a build before their sources are found."""

    def __init__(self, build: Build) -> None:
        self._build = build

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The import system's question."""
        file = self._build.modules.get(name)
        if file is None:
            return None
        location = str(self._build.folder / file)
        loader = importlib.machinery.ExtensionFileLoader(name, location)
        return importlib.util.spec_from_file_location(name, location, loader=loader)


def tag() -> str:
    """What extension modules of this interpreter are called."""
    return importlib.machinery.EXTENSION_SUFFIXES[0]


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes; empty when it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def install(tree: Path) -> bool:
    """Use the build of this tree from now on, if there is a current one; whether there is."""
    if os.environ.get(INTERPRETED):
        return False
    build = Build.read(tree)
    if build is None or build.fault(tree) is not None:
        return False
    sys.meta_path.insert(0, Finder(build))
    return True


def is_in_use() -> bool:
    """Whether this process runs the compiled twins."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)
