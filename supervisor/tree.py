"""Where our packages come from, and that they come from nowhere else.

PyPI has a `supervisor` and a `shared`; a home may have folders of these names. Each of ours must
lie beside this file.
"""

import importlib.util
from pathlib import Path

from shared.home import HomeError

NAMES = ("services", "shared", "contracts", "supervisor")


def tree() -> Path:
    """The folder that holds our packages: the repository, or `mortise/app` of a wheel."""
    return Path(__file__).resolve().parents[1]


def check_tree() -> None:
    """Raises HomeError naming the first package that would be imported from elsewhere."""
    for name in NAMES:
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or []) if spec else []
        if [Path(place).resolve() for place in places] != [tree() / name]:
            raise HomeError(
                f"package {name} comes from {places or 'nowhere'}, not from {tree()};"
                " start with the mortise command of this installation"
            )
