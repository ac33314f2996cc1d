"""Connects to a Unix socket without blocking, and waits out a full backlog.

A loop's own `create_unix_connection(path)` is not used: with a full backlog asyncio claims to be
connected and fails at first use, and uvloop fails at once.
"""

import asyncio
import random
import socket
from collections.abc import Callable
from typing import TypeVar, cast

P = TypeVar("P")
"""An `asyncio.Protocol`, by its methods."""

retry_s_min = 0.002
retry_s_max = 0.1


async def dial(path: str, make_protocol: Callable[[], P]) -> P:
    """A connected protocol. Retries EAGAIN (a full backlog) with jitter until cancelled.

    Raises OSError for anything else: no such socket, nobody listening, no right to it.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        pause_s = retry_s_min
        while not _connect(sock, path):
            await asyncio.sleep(jittered(pause_s))
            pause_s = min(pause_s * 2, retry_s_max)
        loop = asyncio.get_running_loop()
        make = cast("Callable[[], asyncio.Protocol]", make_protocol)
        _, protocol = await loop.create_unix_connection(make, sock=sock)
    except BaseException:
        sock.close()
        raise
    return cast(P, protocol)


def _connect(sock: socket.socket, path: str) -> bool:
    try:
        sock.connect(path)
    except BlockingIOError:
        return False
    return True


def jittered(pause_s: float) -> float:
    """Between half of it and all of it, so that many clients do not retry together."""
    return pause_s * random.uniform(0.5, 1.0)
