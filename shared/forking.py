"""The template's loop: a process that has imported everything forks workers on request.

A worker must belong to the supervisor, not to the template: the template forks a middle process,
which forks the worker and exits, so that the supervisor (a subreaper) adopts it. Only then is the
worker bound to the supervisor. Nothing here computes: a second thread would not survive the fork.
"""

import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

import msgspec
import setproctitle

from shared import allocator, inheritance, lifecycle, parent
from shared.channel import Hello, Ready
from shared.clock import SYSTEM
from shared.inheritance import Inheritance
from shared.service import Service

TITLE = "mortise-template"
EXIT_NOT_SINGLE = 70
"""The template has more than one thread, so its forks would hang."""
_descriptors_max = 3


def serve_template(service_class: type[Service], on_fork: Callable[[], None]) -> None:
    """Fork workers of this service until the supervisor goes: a template's whole `__main__`.

    `on_fork` runs in each worker before anything else of the service, for example to seed.
    """
    inherited = inheritance.receive()
    if inherited is None:
        print(
            "the template is started by the supervisor: mortise start --home DIR", file=sys.stderr
        )
        sys.exit(lifecycle.EXIT_USAGE)
    supervisor_pid = inherited.facts.supervisor_pid
    setproctitle.setproctitle(TITLE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_s = (SYSTEM.monotonic_us() - inherited.facts.started_us) / 1e6
    # The worker's first collection takes 0.1 ms instead of 65 to 175, and its pages stay shared.
    gc.collect()
    gc.freeze()
    control = inherited.control
    control.setblocking(True)
    control.send(msgspec.msgpack.encode(Ready({"import": import_s})))
    while True:
        packet, descriptors, _, _ = socket.recv_fds(
            control, inheritance.facts_bytes_max, _descriptors_max
        )
        if not packet:
            return
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            print(f"the template has {threads} threads; it must have one", file=sys.stderr)
            sys.exit(EXIT_NOT_SINGLE)
        middle_pid = os.fork()
        if middle_pid == 0:
            _middle(service_class, on_fork, control, packet, descriptors, supervisor_pid)
        os.waitpid(middle_pid, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _middle(
    service_class: type[Service],
    on_fork: Callable[[], None],
    template_control: socket.socket,
    packet: bytes,
    descriptors: list[int],
    supervisor_pid: int,
) -> NoReturn:
    """Fork the worker and go, so that the supervisor adopts it."""
    code = 1
    try:
        middle_pid = os.getpid()
        if os.fork() == 0:
            template_control.close()
            os.setsid()
            parent.bind(supervisor_pid, middle_pid)
            _work(service_class, on_fork, packet, descriptors)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 — the end of a process: nothing below us may unwind
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _work(
    service_class: type[Service],
    on_fork: Callable[[], None],
    packet: bytes,
    descriptors: list[int],
) -> None:
    """A worker's life from its adoption on."""
    control_fd, stderr_fd, listen_fd = descriptors
    os.dup2(stderr_fd, 1)
    os.dup2(stderr_fd, 2)
    os.close(stderr_fd)
    facts = inheritance.decode_facts(packet)
    control = socket.socket(fileno=control_fd)
    control.send(msgspec.msgpack.encode(Hello(os.getpid())))
    allocator.start_background_thread()
    on_fork()
    fork_s = (SYSTEM.monotonic_us() - facts.started_us) / 1e6
    inherited = Inheritance(facts, control, socket.socket(fileno=listen_fd))
    lifecycle.run(service_class, inherited, {"fork": fork_s})
