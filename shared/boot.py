"""The first acts of every exec'd child: bind to the supervisor, before any import that takes time,
and let compiled modules be found instead of their sources.

`python -m shared.boot MODULE|FILE [ARGUMENT…]`. Without this a supervisor that dies while a child
imports torch would leave it running for seconds.
"""

import os
import runpy
import sys
from pathlib import Path

from shared import compiled, parent

VARIABLE = "MORTISE_SUPERVISOR"
"""The pid to live and die with."""


def main() -> None:
    """Bind, find what is compiled, then become the module or file that the command line names."""
    parent.bind(int(os.environ.pop(VARIABLE)))
    compiled.install(Path(__file__).resolve().parents[1])
    del sys.argv[0]
    if sys.argv[0].endswith(".py"):
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
