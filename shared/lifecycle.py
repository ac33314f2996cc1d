"""The entry of a service: `main(Service)` as a supervised process, `running` inside a test.

uvloop appears only here. The parts: `shared/environment.py`, `shared/service.py`, `shared/life.py`.
"""

import asyncio
import faulthandler
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import setproctitle
import uvloop

from contracts.limits import listen_backlog
from shared import inheritance, logs
from shared.channel import EXIT_REFUSED, EXIT_UNFIT
from shared.clock import SYSTEM
from shared.environment import Environment, StartupReport
from shared.home import socket_path
from shared.inheritance import Inheritance
from shared.life import Life
from shared.log_files import LogFile
from shared.rpc.server import Server
from shared.service import Readiness, Service, StartRefused, Unfit, build_server

__all__ = [
    "Environment", "Readiness", "Service", "StartRefused", "StartupReport", "main", "run",
    "running",
]  # fmt: skip

EXIT_USAGE = 2
_test_drain_s = 1.0


@asynccontextmanager
async def running(service_class: type[Service], environment: Environment) -> AsyncIterator[Server]:
    """The service in this process, on its socket below `environment.run_dir` (for tests)."""
    service = service_class(environment)
    server = build_server(service, environment)
    path = socket_path(environment.run_dir, environment.service, environment.index)
    path.unlink(missing_ok=True)
    await service.start()
    if not environment.standby:
        await service.promoted()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(listen_backlog)
    await server.start(listener)
    try:
        yield server
    finally:
        server.stop_accepting()
        await server.drain(_test_drain_s)
        await service.drain()
        path.unlink(missing_ok=True)


def main(service_class: type[Service]) -> None:
    """Run the service as a child of the supervisor: the whole of a service's `__main__`.

    `shared.boot` has bound the process to its supervisor.
    """
    inherited = inheritance.receive()
    if inherited is None:
        print(
            f"{service_class.name} is started by the supervisor: mortise start --home DIR",
            file=sys.stderr,
        )
        sys.exit(EXIT_USAGE)
    import_s = (SYSTEM.monotonic_us() - inherited.facts.started_us) / 1e6
    run(service_class, inherited, {"import": import_s})


def run(
    service_class: type[Service], inherited: Inheritance, durations_s: Mapping[str, float]
) -> None:
    """Live until drained; the process is already bound to its supervisor.

    An exception that reaches this point is logged and raised: the process dies of it. A refusal
    is told on stderr in one line, for whoever reads the start, and so is being unfit.
    """
    facts = inherited.facts
    setproctitle.setproctitle(f"services.{facts.service} {facts.index}")
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    file = LogFile(inherited.log_path, bytes_max=facts.log_bytes_max, files_max=facts.log_files_max)
    logs.direct(file.put, service=facts.service, instance=facts.instance)
    environment = Environment.from_facts(facts)
    for name, seconds in durations_s.items():
        environment.startup.add(name, seconds)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_live(service_class, environment, inherited))
    except StartRefused as refusal:
        logs.get("shared.lifecycle").error("start_refused", reason=str(refusal))
        print(" ".join(str(refusal).split()), file=sys.stderr, flush=True)
        sys.exit(EXIT_REFUSED)
    except Unfit as reason:
        logs.get("shared.lifecycle").error("unfit", reason=str(reason))
        file.close()
        print(" ".join(str(reason).split()), file=sys.stderr, flush=True)
        os._exit(EXIT_UNFIT)  # a thread that nothing ends is not waited for
    except BaseException:
        logs.get("shared.lifecycle").exception("service_died")
        raise
    finally:
        file.close()


async def _live(
    service_class: type[Service], environment: Environment, inherited: Inheritance
) -> None:
    await Life(service_class, environment, inherited).run()
