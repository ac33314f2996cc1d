"""A blocking client that knows sockets and msgpack and nothing of ours."""

import socket
import time
from types import TracebackType
from typing import Any

import msgpack

CONNECT_S_MAX = 30.0
ANSWER_S_MAX = 30.0


def connect(path: str) -> socket.socket:
    """A connected socket; a full backlog is waited out."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    deadline_s = time.monotonic() + CONNECT_S_MAX
    while True:
        try:
            sock.connect(path)
        except BlockingIOError:
            assert time.monotonic() < deadline_s, "the backlog stayed full"
            time.sleep(0.002)
        else:
            sock.settimeout(ANSWER_S_MAX)
            return sock


class RawClient:
    """One connection."""

    def __init__(self, path: str) -> None:
        self.sock = connect(path)
        self._unpacker = msgpack.Unpacker(max_buffer_size=0)
        self._next = 0

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sock.close()

    def send(self, *messages: Any) -> None:
        """Send messages, or bytes as they are."""
        parts = (m if isinstance(m, bytes) else msgpack.packb(m) for m in messages)
        self.sock.sendall(b"".join(parts))

    def receive(self) -> Any:
        """The next message; None when the server closed the connection."""
        while True:
            for message in self._unpacker:
                return message
            try:
                chunk = self.sock.recv(262_144)
            except ConnectionResetError:
                return None
            if not chunk:
                return None
            self._unpacker.feed(chunk)

    def call(self, method: str, body: Any = None, context: Any = None) -> tuple[Any, Any]:
        """(error, result) of one call."""
        self._next += 1
        params = [{} if body is None else body] + ([] if context is None else [context])
        self.send([0, self._next, method, params])
        message = self.receive()
        assert message is not None, "the connection was closed"
        assert message[:2] == [1, self._next]
        return message[2], message[3]
