"""The supervisor's process: lock, bind, start, announce, obey, drain."""

import asyncio
import math
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import setproctitle

from shared import infrastructure, inheritance, logs
from shared.clock import SYSTEM
from shared.home import Config, Home
from shared.log_files import LogFile
from shared.rpc.call import new_trace_id
from supervisor import control, scrape
from supervisor.announce import Announcer, Say
from supervisor.control import Control
from supervisor.hardening import harden
from supervisor.jemalloc import find_jemalloc
from supervisor.launcher import Surroundings
from supervisor.mesh import EDGE, Mesh
from supervisor.scrape import Scrape
from supervisor.shortfall import serves_something, shortfalls
from supervisor.sockets import Listeners, RunLock, bind, leave_run_dir, passed_sockets
from supervisor.spec import MeshSpec, mesh_of
from supervisor.tree import check_tree, tree

log = logs.get("supervisor")
TITLE = "mortise-supervisor"
settle_s_max = 10.0
"""A mesh that can answer, but serves less, may become whole within this before a start ends."""
MakeSpec = Callable[[Config], MeshSpec]
OnReady = Callable[[bool], None]
"""Gets whether some model can be asked."""


def serve(
    home: Home,
    *,
    say: Say,
    on_ready: OnReady = lambda serves: None,
    make_spec: MakeSpec = mesh_of,
    python_path: str | None = None,
) -> int:
    """Run the mesh of a home until it is told to stop; the exit code.

    `say` gets each line for people, standard error why a start failed; `on_ready` is called once
    when the mesh is up. Raises HomeError when the home cannot be used; AlreadyRunning names
    who uses it. `make_spec` and `python_path` let tests run children of their own.
    """
    check_tree()
    config = home.config().placed(len(os.sched_getaffinity(0)))
    if config.supervisor.metrics:
        scrape.loopback(config.supervisor.metrics)
    home.prepare()
    spec = make_spec(config)
    locks: list[RunLock] = []
    listeners = Listeners()
    try:
        # Both, because `run_dir` may be moved between two starts of one home.
        for folder in dict.fromkeys((home.run_dir, home.state_dir)):
            locks.append(RunLock.take(folder, home.path))
        leave_run_dir(home.state_dir, home.run_dir)
        names = [(child.service, child.index) for child in spec.children]
        names += [
            ("model_runtime", index)
            for index in range(config.runtime.replicas_max)
            if ("model_runtime", index) not in names
        ]
        passed = passed_sockets(os.environ)
        listeners.bind_all(home.run_dir, names, passed)
        return _run(home, config, spec, listeners, say, on_ready, python_path or str(tree()))
    finally:
        listeners.close_all()
        for lock in locks:
            lock.release()


def _run(
    home: Home,
    config: Config,
    spec: MeshSpec,
    listeners: Listeners,
    say: Say,
    on_ready: OnReady,
    python_path: str,
) -> int:
    harden()
    setproctitle.setproctitle(TITLE)
    limits = config.supervisor
    file = LogFile(
        inheritance.log_path(home.path, "supervisor", 0),
        bytes_max=limits.log_mib_max * 1024 * 1024,
        files_max=limits.log_files_max,
    )
    logs.direct(file.put, service="supervisor", instance=f"supervisor.0-{os.getpid()}")
    surroundings = Surroundings(
        home=home.path,
        run_dir=home.run_dir,
        config=config,
        infra=infrastructure.digest(infrastructure.facts()),
        tree=python_path,
        inherited=dict(os.environ),
        jemalloc=find_jemalloc(os.environ),
    )
    try:
        return asyncio.run(_supervise(home, spec, surroundings, listeners, say, on_ready))
    except BaseException:
        log.exception("supervisor_died")
        raise
    finally:
        file.close()
        logs.undirect()


async def _supervise(
    home: Home,
    spec: MeshSpec,
    surroundings: Surroundings,
    listeners: Listeners,
    say: Say,
    on_ready: OnReady,
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_exception)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: log.info("hangup_ignored"))
    trace_id = new_trace_id()
    mesh = Mesh(spec, surroundings, listeners, SYSTEM, trace_id)
    commands = Control(mesh, home, SYSTEM, stop.set)
    metrics = Scrape(mesh)
    paths = [home.run_dir / control.NAME, home.run_dir / scrape.NAME]
    try:
        await commands.start(bind(paths[0]))
        await metrics.start(bind(paths[1]), surroundings.config.supervisor.metrics)
        log.info("supervisor_started", trace_id=trace_id, pid=os.getpid(), infra=surroundings.infra)
        announcer = Announcer(say)
        mesh.on_answer, mesh.on_template = announcer.answered, announcer.forks
        mesh.start()
        reason = await _wait_ready(mesh, stop)
        if stop.is_set():
            return 0
        if reason is not None:
            log.error("start_failed", trace_id=trace_id, reason=reason)
            Announcer(say_stderr).failed(mesh, home, reason)
            return 1
        lacking = shortfalls(mesh)
        serves = not lacking or await serves_something(mesh, home.models_dir)
        seconds = SYSTEM.monotonic() - mesh.started_s
        announcer.ready(mesh, home, seconds, lacking, serves=serves)
        on_ready(serves)
        await stop.wait()
        return 0
    finally:
        trace_id = new_trace_id()
        log.info("draining", trace_id=trace_id)
        await mesh.drain()
        await commands.close()
        metrics.close()
        for path in paths:
            path.unlink(missing_ok=True)
        log.info("stopped", trace_id=trace_id)


def _log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A defect of ours must not take the children down: it is logged, and they go on."""
    log.error("loop_exception", message=context.get("message"), exc_info=context.get("exception"))


async def _wait_ready(mesh: Mesh, stop: asyncio.Event) -> str | None:
    """None once the mesh can answer, or lives without any policy; else why it cannot.

    A mesh that can answer but serves less gets `settle_s_max` to become whole: the edge may answer
    for one model while it has not yet heard that another is loaded.
    """
    spec = mesh.spec
    ends_s = mesh.started_s + spec.ready_s_max
    settled_s = math.inf
    while not stop.is_set():
        degraded = [slot for slot in mesh.slots if slot.restarts.is_degraded]
        if degraded:
            return f"{degraded[0].spec.label} does not start: {degraded[0].last_ending}"
        if mesh.template is not None and mesh.template.restarts.is_degraded:
            return f"the template does not start: {mesh.template.last_ending}"
        if mesh.is_live and (mesh.is_ready or _has_no_policy(mesh)):
            settled_s = min(settled_s, SYSTEM.monotonic() + settle_s_max)
            if not shortfalls(mesh) or SYSTEM.monotonic() > settled_s:
                return None
        if SYSTEM.monotonic() > ends_s:
            return f"not ready within {spec.ready_s_max:g} s: {_missing(mesh)}"
        await mesh.wait_changed(spec.patience.tick_s)
    return None


def _has_no_policy(mesh: Mesh) -> bool:
    """A new home without policies lives, and is ready once something is published."""
    slot = mesh.slot("control_plane")
    health = None if slot is None else mesh.health(slot)
    return health is not None and health.ready and health.policy_version == 0


def _missing(mesh: Mesh) -> str:
    parts = []
    for slot in mesh.slots:
        health = mesh.health(slot)
        if slot.condition != "up" or health is None:
            parts.append(f"{slot.spec.label} is {slot.condition}")
        elif not health.ready and (slot.spec.service == EDGE or health.reasons):
            parts.append(f"{slot.spec.label}: {', '.join(health.reasons) or 'not ready'}")
    return "; ".join(parts)


def say_stdout(line: str) -> None:
    """Print at once."""
    print(line, flush=True, file=sys.stdout)


def say_stderr(line: str) -> None:
    """Print at once, where errors are read."""
    print(line, flush=True, file=sys.stderr)
