"""Where the mesh's own packages are, and that they are imported from there.

PyPI has a `supervisor` and a `shared`. In an installed wheel ours lie in the private folder
`mortise/app`, in a checkout at the repository's root; that folder comes first on `sys.path`, and
in `PYTHONPATH` for the processes that are started.
"""

import importlib.util
import os
import sys
from pathlib import Path

PACKAGES = ("contracts", "shared", "services", "supervisor")
SERVE_COMMAND = "pip install 'mortise[serve]'"
_HERE = Path(__file__).resolve().parent


class WrongTree(Exception):
    """A package of ours would be imported from somewhere else."""


def tree() -> Path:
    """The folder that holds `PACKAGES` and the examples."""
    private = _HERE / "app"
    return private if private.is_dir() else _HERE.parent


def put_first() -> None:
    """Let our packages win over others of the same names, here and in processes we start.

    Raises WrongTree naming the first package that still comes from elsewhere.
    """
    place = str(tree())
    sys.path[:] = [place, *(entry for entry in sys.path if entry != place)]
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [entry for entry in inherited if entry not in ("", place)]
    os.environ["PYTHONPATH"] = os.pathsep.join([place, *others])
    importlib.invalidate_caches()
    for name in PACKAGES:
        loaded = sys.modules.get(name)
        spec = importlib.util.find_spec(name) if loaded is None else loaded.__spec__
        origin = None if spec is None else spec.origin
        if origin is None or Path(origin).resolve().parent != tree() / name:
            raise WrongTree(
                f"package {name} comes from {origin or 'nowhere'}, not from {place}:"
                " reinstall mortise, or run it in an environment of its own"
            )


def missing_package() -> str | None:
    """The first package of the `serve` extra that the command needs and does not find."""
    for name in ("cyclopts", "rich", "msgspec"):
        if importlib.util.find_spec(name) is None:
            return name
    return None
