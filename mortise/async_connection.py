"""One asyncio connection to a service's Unix socket; the msgids tell its calls apart."""

import asyncio
import contextlib
import random
import time
from typing import NamedTuple

from mortise.connection import dial_once
from mortise.retry import Lost, dial_wait_s
from mortise.wire import CHUNK_BYTES, Answer, Incoming, Notice, WireError, cancel_frame

ITEMS_WAITING_MAX = 64
"""Stream items that the caller has not taken; past it the connection is not read."""


class _Pending(NamedTuple):
    """A call in flight: what came for it (None: the connection ended), and whether it streams."""

    came: asyncio.Queue[Answer | Notice | None]
    asks_items: bool


class AsyncConnection:
    """An open connection and the task that reads it. Everything runs on one loop."""

    def __init__(
        self, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.path = path
        self._reader, self._writer = reader, writer
        self._incoming = Incoming()
        self._pending: dict[int, _Pending] = {}
        self._next_msgid = 0
        self._goes_away = False
        self._lost = ""
        self._reading = asyncio.create_task(self._read())

    @property
    def is_usable(self) -> bool:
        """Whether a new call may start here."""
        return not self._lost and not self._goes_away

    async def send(self, msgid: int, frame: bytes, *, asks_items: bool) -> None:
        """Start a call; `end` it in any case. A peer that closed meanwhile may have said why,
        which `receive` finds out."""
        queue: asyncio.Queue[Answer | Notice | None] = asyncio.Queue(ITEMS_WAITING_MAX)
        self._pending[msgid] = _Pending(queue, asks_items)
        with contextlib.suppress(ConnectionError):
            self._writer.write(frame)
            await self._writer.drain()

    async def receive(self, msgid: int) -> Answer | Notice:
        """The next stream item or the answer of a call. Raises Lost when the connection ends."""
        came = self._pending[msgid].came
        message = None if self._lost and came.empty() else await came.get()
        if message is None:
            raise Lost(f"the connection to {self.path} {self._lost}")
        return message

    def end(self, msgid: int, *, is_answered: bool) -> None:
        """Forget a call; one without an answer is cancelled at the service."""
        was_sent = self._pending.pop(msgid, None) is not None
        if was_sent and not is_answered and not self._lost:
            self._writer.write(cancel_frame(msgid))
        if self._goes_away and not self._pending:
            self._reading.cancel()

    def next_msgid(self) -> int:
        """A msgid that this connection has not used for 2³² calls."""
        self._next_msgid = (self._next_msgid + 1) % 2**32
        return self._next_msgid

    async def close(self) -> None:
        """Close; calls in flight end with Lost."""
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        try:
            while chunk := await self._reader.read(CHUNK_BYTES):
                for message in self._incoming.feed(chunk):
                    await self._hand_over(message)
                if self._goes_away and not self._pending:
                    break
            self._lost = "was closed before the answer"
        except (OSError, WireError) as error:
            self._lost = f"broke: {error}"
        finally:
            self._lost = self._lost or "was closed by this client"
            self._writer.close()
            for pending in self._pending.values():
                if not pending.came.full():  # a full one is read empty first, then sees `_lost`
                    pending.came.put_nowait(None)

    async def _hand_over(self, message: Answer | Notice) -> None:
        if isinstance(message, Answer):
            pending = self._pending.get(message.msgid)
            if pending is not None:
                await pending.came.put(message)
        elif message.method == "goaway":
            self._goes_away = True
        elif message.method == "stream" and message.params:
            pending = self._pending.get(message.params[0])
            if pending is not None and pending.asks_items:
                await pending.came.put(message)


async def dial_async(path: str, deadline_s: float) -> AsyncConnection:
    """Connect until `deadline_s` (monotonic). asyncio would claim to be connected to a full
    backlog, so the socket is connected before asyncio has it. Raises MeshDown, or Lost when the
    backlog stays full."""
    attempt = 0
    while True:
        try:
            connected = dial_once(path)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise Lost(f"{path} accepts no connection: its backlog is full") from None
            await asyncio.sleep(dial_wait_s(attempt, random.random()))
            attempt += 1
        else:
            streams = await asyncio.open_unix_connection(sock=connected, limit=CHUNK_BYTES)
            return AsyncConnection(path, *streams)
