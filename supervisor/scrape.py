"""`metrics.sock`: at each scrape asks every service for its metrics and answers over HTTP.

Also on a loopback TCP port where the home's file names one.
"""

import asyncio
import ipaddress
import socket

from contracts.service import Metric, Series
from shared import logs
from shared.home import HomeError
from supervisor import proc
from supervisor.exposition import CONTENT_TYPE, exposition
from supervisor.mesh import Mesh
from supervisor.slot import Slot

log = logs.get("supervisor.scrape")
NAME = "metrics.sock"
head_bytes_max = 8_192
head_s_max = 5.0
connections_max = 16


def loopback(address: str) -> tuple[str, int]:
    """Host and port of `[supervisor] metrics`. Raises HomeError unless it is a loopback one."""
    host, _, port = address.rpartition(":")
    try:
        is_loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback or not port.isdecimal() or int(port) > 65_535:
        raise HomeError(
            f"supervisor.metrics is {address!r}; it must be a loopback address such as"
            ' "127.0.0.1:9464"'
        )
    return host.strip("[]"), int(port)


class Scrape:
    """The HTTP listeners. `GET /metrics` is all they know."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._servers: list[asyncio.Server] = []
        self._open = 0

    async def start(self, sock: socket.socket, address: str) -> None:
        """Serve on the bound Unix socket, and on `address` unless it is ""."""
        self._servers.append(
            await asyncio.start_unix_server(self._serve, sock=sock, limit=head_bytes_max)
        )
        if address:
            host, port = loopback(address)
            try:
                server = await asyncio.start_server(self._serve, host, port, limit=head_bytes_max)
            except OSError as error:
                raise HomeError(f"cannot listen on {address}: {error.strerror}") from error
            self._servers.append(server)

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open > connections_max:
                await _answer(writer, "503 Service Unavailable", b"too many scrapes\n")
                return
            async with asyncio.timeout(head_s_max):
                head = await reader.readuntil(b"\r\n\r\n")
            words = head.split(b"\r\n", 1)[0].split()
            if words[:2] not in ([b"GET", b"/metrics"], [b"GET", b"/"]):
                await _answer(writer, "404 Not Found", b"GET /metrics\n")
                return
            await _answer(writer, "200 OK", await self.text())
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            log.info("scrape_refused")
        finally:
            self._open -= 1
            writer.close()

    async def text(self) -> bytes:
        """The exposition of this moment; a service that does not answer is left out."""
        slots = list(self._mesh.slots)  # their number may change meanwhile
        answers = await asyncio.gather(
            *(self._mesh.probes[slot.spec.label].metrics() for slot in slots)
        )
        parts = [
            (slot.spec.service, slot.spec.index, answer.metrics)
            for slot, answer in zip(slots, answers, strict=True)
            if answer is not None
        ]
        own = [
            (slot.spec.service, slot.spec.index, [*_own(slot), *self._mesh.measuring.metrics(slot)])
            for slot in slots
        ]
        return exposition([*parts, *own])


async def _answer(writer: asyncio.StreamWriter, status: str, body: bytes) -> None:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()


def _own(slot: Slot) -> list[Metric]:
    """What the supervisor knows of one child."""
    pid = slot.active.pid if slot.active is not None else 0
    resident_bytes, cpu_s, descriptors = usage(pid)
    lag_s = slot.active.lag_s if slot.active is not None else 0.0
    rows = (
        ("ai_child_up", "gauge", "1 while the child accepts requests", slot.condition == "up"),
        ("ai_child_degraded", "gauge", "1 while it fails too often", slot.restarts.is_degraded),
        ("ai_child_restarts_total", "counter", "Exits of the active child", slot.restarts.count),
        ("ai_child_resident_bytes", "gauge", "Resident memory", resident_bytes),
        ("ai_child_cpu_seconds", "gauge", "CPU time of this instance", cpu_s),
        ("ai_child_descriptors", "gauge", "Open file descriptors", descriptors),
        ("ai_child_loop_lag_seconds", "gauge", "How late the last heartbeat was", lag_s),
    )
    return [
        Metric(
            name=name,
            kind=kind,  # type: ignore[arg-type]
            help=text,
            labels=[],
            series=[Series(labels=[], value=float(value))],
        )
        for name, kind, text, value in rows
    ]


def usage(pid: int) -> tuple[int, float, int]:
    """Resident bytes, CPU seconds and open descriptors of a process; zeros when it is gone."""
    found = proc.sample(pid, 0.0)
    return (0, 0.0, 0) if found is None else (found.resident_bytes, found.cpu_s, found.descriptors)
