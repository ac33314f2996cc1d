"""HTTP/1.1 keep-alive with prebuilt request bytes: as cheap for the generator as MessagePack."""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Any

from benchmarks.generator import Load
from benchmarks.peers.truth import is_same

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_OK = re.compile(rb"HTTP/1\.[01] 200 ")


class Pool:
    """Connections of one load. HTTP/1.1 answers in order, so a busy one takes no second request:
    in the open loop the next free connection does, or the request waits (and its clock runs)."""

    def __init__(self) -> None:
        self.free: list[HttpClient] = []
        self.waiting: deque[int] = deque()

    def take(self) -> "HttpClient | None":
        """A free connection."""
        while self.free:
            client = self.free.pop()
            client.is_listed = False
            if client.is_open and not client.msgid:
                return client
        return None


class HttpClient(asyncio.Protocol):
    """One connection; every answer is compared with what this client's row gives."""

    def __init__(
        self,
        load: Load,
        pool: Pool,
        request: bytes,
        expected: bytes,
        read: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self.load, self.pool = load, pool
        self.request, self.expected, self._read = request, expected, read
        self._right: bytes | None = None
        self.msgid, self.is_listed, self.is_open = 0, False, True
        self._open = b""

    def connection_made(self, transport: Any) -> None:
        """The loop's."""
        self.transport = transport

    def send(self, msgid: int) -> None:
        """Send one request, here or on a connection that is free."""
        client = self if self.is_open and not self.msgid else self.pool.take()
        if client is None:
            self.pool.waiting.append(msgid)
        else:
            client.write(msgid)

    def write(self, msgid: int) -> None:
        """Send it here."""
        self.msgid = msgid
        self.transport.write(self.request)

    def data_received(self, chunk: bytes) -> None:
        """One answer, whole or in parts."""
        received = self._open + chunk if self._open else chunk
        head = received.find(b"\r\n\r\n")
        length = _LENGTH.search(received, 0, head + 2) if head > 0 else None
        if head > 0 and length is None:
            self._open = b""
            self._end(received)
            return
        end = head + 4 + int(length.group(1)) if length is not None else 0
        if not end or len(received) < end:
            self._open = received
            return
        self._open = b""
        body = received[head + 4 : end]
        # An answer like the last right one need not be decoded again.
        if _OK.match(received) and (
            body == self._right or is_same(self._read(body), self.expected)
        ):
            self._right = body
            self._end(None)
        else:
            self._end(received)

    def _end(self, wrong: bytes | None) -> None:
        msgid, self.msgid = self.msgid, 0
        if wrong is None:
            self.load.on_answer(self, msgid)
        else:
            self.load.on_failure(self, msgid, wrong)
        if self.msgid or not self.is_open:
            return
        if self.pool.waiting:
            self.write(self.pool.waiting.popleft())
        elif not self.is_listed:
            self.is_listed = True
            self.pool.free.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        """An idle connection may be closed by the server; one with a request in flight may not."""
        self.is_open = False
        if self.msgid and not self.load.is_over:
            msgid, self.msgid = self.msgid, 0
            self.load.sent_s.pop(msgid, None)
            self.load.error(f"the server closed the connection: {error}")


def request_of(path: str, headers: dict[str, str], body: bytes) -> bytes:
    """The bytes of a POST."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "", "")).encode() + body
