"""Serves one service's methods on a Unix socket: accepting, the connection cap, draining.

What a connection's messages do is in `shared.rpc.session`.
"""

import asyncio
import resource
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from contracts.limits import connections_max_default, listen_backlog
from contracts.types import Scalar
from shared.access import Access
from shared.clock import SYSTEM, Clock
from shared.rpc.call import DEFERRED, Call, Handler
from shared.rpc.connection import Flusher
from shared.rpc.dispatch import dispatch_table
from shared.rpc.serving import DRAIN_OVER, Serving, refusals_max
from shared.rpc.session import Session
from shared.wire.framing import HeldBytes

__all__ = ["DEFERRED", "Call", "Handler", "Server"]

descriptors_reserved = 512
"""Kept for files, our own connections and `refusals_max` refusals below RLIMIT_NOFILE, but no more
than half of it."""
held_bytes_max = 128 * 1024 * 1024
"""Of incomplete frames of all connections together: eight of the longest."""
abort_s_max = 1.0
"""After an abort the loop reports the loss in its next turn; this bounds a broken loop."""

assert refusals_max < descriptors_reserved, "a refusal must not run out of descriptors"


class Server:
    """One service on one listening socket. Made and used on the loop's thread."""

    def __init__(
        self,
        service: str,
        handlers: Mapping[str, Handler],
        *,
        instance: str,
        access: Access,
        clock: Clock = SYSTEM,
        connections_max: int = connections_max_default,
    ) -> None:
        self._table = dispatch_table(service, handlers, instance=instance)
        self._service = service
        self._instance = instance
        self._access = access
        self._clock = clock
        self._connections_max = connections_max
        self._serving: Serving | None = None
        self._listener: asyncio.Server | None = None
        self._left = asyncio.Event()

    async def start(self, sock: socket.socket, *, serving: bool = True) -> None:
        """Listen on a bound socket; with `serving=False` accept nothing until `start_serving`.

        The socket's path is never unlinked here: whoever bound it owns it.
        """
        loop = asyncio.get_running_loop()
        self._serving = Serving(
            service=self._service,
            instance=self._instance,
            table=self._table,
            access=self._access,
            clock=self._clock,
            connections_max=connection_cap(self._connections_max),
            loop=loop,
            flusher=Flusher.of(loop),
            held=HeldBytes(held_bytes_max),
            on_left=self._left.set,
        )
        state = self._serving
        keep_path: dict[str, Any] = {"cleanup_socket": False} if _may_unlink(loop) else {}
        self._listener = await loop.create_unix_server(
            lambda: cast(asyncio.Protocol, Session(state)),
            sock=sock,
            backlog=listen_backlog,
            start_serving=serving,
            **keep_path,
        )

    async def start_path(self, path: str | Path) -> None:
        """Bind a fresh socket at `path` and serve on it; for tests and throw-away servers."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.bind(str(path))
        await self.start(sock)

    async def start_serving(self) -> None:
        """Accept, after `start(serving=False)`."""
        assert self._listener is not None, "start comes first"
        await self._listener.start_serving()

    def stop_accepting(self) -> None:
        """Close this process's listening descriptor; what is connected goes on."""
        if self._listener is not None:
            self._listener.close()

    async def drain(self, budget_s: float) -> None:
        """Let every client go: goaway, what is in flight ends, close; abort after the budget."""
        self.stop_accepting()
        state = self._serving
        if state is None:
            return
        deadline_s = state.loop.time() + budget_s
        for _ in range(2):  # requests that already arrived are read before connections are judged
            await asyncio.sleep(0)
        for session in list(state.sessions):
            session.go_away("drain")
        await self._wait_left(state, deadline_s - state.loop.time())
        for session in [*state.sessions, *state.refusing]:
            session.abort(DRAIN_OVER)
        await self._wait_left(state, abort_s_max)

    async def _wait_left(self, state: Serving, wait_s: float) -> None:
        """Until no session is left, or so many seconds passed."""
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                while state.sessions:
                    self._left.clear()
                    await self._left.wait()
        except TimeoutError:
            return

    def statistics(self) -> dict[str, Scalar]:
        """Counters and gauges by name."""
        return {} if self._serving is None else self._serving.counters.statistics()


def connection_cap(connections_max: int) -> int:
    """The configured cap, lowered so that descriptors suffice."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections_max
    return min(connections_max, soft - min(descriptors_reserved, soft // 2))


def _may_unlink(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this loop would remove the socket's path on close (uvloop, asyncio from 3.13)."""
    return type(loop).__module__.startswith("uvloop") or sys.version_info >= (3, 13)
