"""A control plane in a process of its own: `plane_process.py HOME [FAULT]`.

FAULT `activation` kills the process with SIGKILL when a commit is on the disk and nobody has been
told yet. Prints `serving` when it accepts.
"""

import asyncio
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))

from services.control_plane.distributor import Distributor  # noqa: E402 — after the path is set
from services.control_plane.service import ControlPlane  # noqa: E402
from shared.environment import Environment  # noqa: E402
from shared.lifecycle import running  # noqa: E402


def die(*_arguments: Any) -> None:
    """As `kill -9` at this very place."""
    os.kill(os.getpid(), signal.SIGKILL)


async def serve(home: Path) -> None:
    """Serve until killed."""
    environment = Environment.for_test("control_plane", home)
    async with running(partial(ControlPlane, settle_s=0.2), environment):  # type: ignore[arg-type]
        print("serving", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[2:] == ["activation"]:
        Distributor._activate = die  # type: ignore[method-assign]
    asyncio.run(serve(Path(sys.argv[1])))
