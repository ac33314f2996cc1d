"""A service without content, for tests of the supervisor: it answers `ping` and misbehaves on
demand. `python toy.py SERVICE BEHAVIOUR`, or `python toy.py template SERVICE BEHAVIOUR`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping

from contracts.errors import MeshError
from contracts.methods import EVERY_SERVICE, METHODS
from shared import lifecycle
from shared.forking import serve_template
from shared.rpc.server import Call, Handler
from shared.service import Readiness, Service, StartRefused

BEHAVIOUR = sys.argv[-1]


def refuse(call: Call) -> None:
    """A toy has no methods of its own."""
    raise MeshError("UNAVAILABLE", "a toy")


class Toy(Service):
    """Behaves as its command line says."""

    def handlers(self) -> Mapping[str, Handler]:
        """Every method of the service, refusing."""
        shared = {row.name for row in EVERY_SERVICE}
        return {name: refuse for name in METHODS[self.environment.service] if name not in shared}

    async def start(self) -> None:
        """Misbehave here."""
        if BEHAVIOUR == "refuse":
            raise StartRefused("toys.toml: toy 2, bear: colour is 7, expected a name")
        if BEHAVIOUR == "crash":
            raise RuntimeError("a toy that cannot start")
        if BEHAVIOUR == "crash-once-fixed" and not (self.environment.home / "fixed").exists():
            os._exit(3)
        if BEHAVIOUR == "exit0":
            os._exit(0)
        if BEHAVIOUR == "never-ready":
            await asyncio.sleep(3600)
        if BEHAVIOUR == "ignore-term":
            asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if BEHAVIOUR == "orphans" and os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                signal.pause()

    def readiness(self) -> Readiness:
        """Always ready."""
        return Readiness(ready=True, policy_version=1)


if __name__ == "__main__":
    if sys.argv[1] == "template":
        Toy.name = sys.argv[2]
        serve_template(Toy, lambda: None)
    else:
        Toy.name = sys.argv[1]
        lifecycle.main(Toy)
