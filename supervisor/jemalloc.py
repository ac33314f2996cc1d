"""Finds jemalloc, and checks that a child really runs on it: a missing library only warns."""

import glob
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "MORTISE_JEMALLOC"
"""The library's path where it is not in a usual place; "" turns it off."""
_PLACES = (
    "/usr/lib/*/libjemalloc.so.2",
    "/usr/lib64/libjemalloc.so.2",
    "/usr/lib/libjemalloc.so.2",
    "/usr/local/lib/libjemalloc.so.2",
)


def find_jemalloc(variables: Mapping[str, str]) -> str | None:
    """The path of jemalloc 5's shared library, or None."""
    if VARIABLE in variables:
        given = variables[VARIABLE]
        return given if given and Path(given).exists() else None
    found = sorted(path for place in _PLACES for path in glob.glob(place))
    return found[0] if found else None


def is_loaded(pid: int, library: str) -> bool:
    """Whether the process has mapped the library."""
    real = str(Path(library).resolve())
    try:
        return real in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False
