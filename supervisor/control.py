"""`supervisor.sock`: status, SLAs, stop, planned restarts, how many runtimes; for the owner alone.

One JSON object a line in, one a line out. Not part of the mesh's public contract: the commands
`mortise start | stop | status | sla` are.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from shared import logs
from shared.clock import Clock
from shared.home import Home
from shared.rpc.call import new_trace_id
from supervisor.mesh import Mesh
from supervisor.replicas import Replicas
from supervisor.status import status_of

log = logs.get("supervisor.control")
NAME = "supervisor.sock"
line_bytes_max = 64 * 1024
answer_bytes_max = 4 * 1024 * 1024
close_s_max = 1.0
_CREDENTIALS = struct.Struct("3i")


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line that asks for something."""

    do: str
    service: str = ""
    index: int = 0
    count: int = 0


class Control:
    """The server side."""

    def __init__(self, mesh: Mesh, home: Home, clock: Clock, on_stop: Callable[[], None]) -> None:
        self._mesh, self._home, self._clock, self._on_stop = mesh, home, clock, on_stop
        self._replicas = Replicas(mesh, clock)
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def start(self, sock: socket.socket) -> None:
        """Serve on the bound socket."""
        self._server = await asyncio.start_unix_server(self._serve, sock=sock, limit=line_bytes_max)

    async def close(self) -> None:
        """Take no more commands; a connection that waits for the stop sees its end now."""
        if self._server is not None:
            self._server.close()
        for writer in self._open.values():
            writer.close()
        if self._open:
            await asyncio.wait(self._open, timeout=close_s_max)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "the server runs each connection in a task"
        self._open[task] = writer
        try:
            if not _is_owner(writer):
                return
            while line := await reader.readline():
                writer.write(msgspec.json.encode(await self._obey(line)) + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError) as error:  # ValueError: a line over the limit
            log.info("control_connection_lost", reason=str(error))
        finally:
            del self._open[task]
            writer.close()

    async def _obey(self, line: bytes) -> dict[str, Any]:
        try:
            command = msgspec.json.decode(line, type=Command)
        except msgspec.MsgspecError as error:
            return {"error": f"not a command: {error}"}
        if command.do == "status":
            now_s = self._clock.monotonic()
            home, run_dir = str(self._home.path), str(self._home.run_dir)
            return {"status": msgspec.to_builtins(status_of(self._mesh, home, run_dir, now_s))}
        if command.do == "sla":
            return {"sla": msgspec.to_builtins(await self._mesh.sla.report())}
        if command.do == "stop":
            log.info("stop_asked")
            self._on_stop()
            return {"stopping": os.getpid()}
        if command.do == "restart":
            return await self._restart(command)
        if command.do == "replicas":
            return await self._replicas.ask(command.count)
        return {"error": f"unknown command {command.do!r}: status, sla, stop, restart, replicas"}

    async def _restart(self, command: Command) -> dict[str, Any]:
        slot = self._mesh.slot(command.service, command.index)
        if slot is None:
            known = ", ".join(place.spec.label for place in self._mesh.slots)
            unknown = f"no child {command.service} {command.index}; there are: {known}"
            return {"error": unknown, "unknown": True}
        trace_id = new_trace_id()
        log.info("restart_asked", trace_id=trace_id, child=slot.spec.label)
        reason = await self._mesh.replace(slot, trace_id)
        if reason is not None:
            log.error("restart_failed", trace_id=trace_id, child=slot.spec.label, reason=reason)
            return {"error": f"{slot.spec.label} was not replaced: {reason}"}
        if slot.active is None:
            return {"error": f"{slot.spec.label} was replaced, and ended: {slot.last_ending}"}
        return {"restarted": slot.spec.label, "pid": slot.active.pid}


def _is_owner(writer: asyncio.StreamWriter) -> bool:
    sock: socket.socket = writer.get_extra_info("socket")
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(packed)[1] in (os.getuid(), 0)


def ask(run_dir: Path, command: Command, timeout_s: float) -> dict[str, Any]:
    """Send one command to the supervisor of a run directory, blocking.

    For "stop" returns once the supervisor has ended. Raises OSError when none listens, TimeoutError
    when it does not answer in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        sock.connect(os.fspath(run_dir / NAME))
        sock.sendall(msgspec.json.encode(command) + b"\n")
        with sock.makefile("rb") as file:
            answer = file.readline(answer_bytes_max)
            if command.do == "stop":
                file.read(1)
    if not answer:
        raise ConnectionResetError("the supervisor closed the connection")
    decoded: dict[str, Any] = msgspec.json.decode(answer)
    return decoded
