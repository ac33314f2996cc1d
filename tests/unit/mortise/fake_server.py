"""A service as the SDK sees one: raw MessagePack-RPC on a socket, with a scripted behaviour."""

import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import msgpack

Step = bytes | None
"""Bytes to send, or None: close the connection."""
Behaviour = Callable[[int, list[Any]], Iterable[Step]]
"""(number of this request on the server, frame) → what to do."""


def reply(frame: list[Any], result: Any) -> bytes:
    """A response to a request frame."""
    return msgpack.packb([1, frame[1], None, result])


def refuse(frame: list[Any], name: str, code: int, **more: Any) -> bytes:
    """An error response to a request frame."""
    body = {"code": code, "name": name, "message": "no", "trace_id": "", "retryable": False}
    return msgpack.packb([1, frame[1], body | more, None])


def item(frame: list[Any], sequence: int, value: Any) -> bytes:
    """A stream notification for a request frame."""
    return msgpack.packb([2, "stream", [frame[1], sequence, value]])


def echo(number: int, frame: list[Any]) -> Iterable[Step]:
    """Answers every request with its method, body and context."""
    body, context = frame[3]
    yield reply(frame, {"method": frame[2], "body": body, "context": context, "number": number})


class FakeServer:
    """Listens on a socket of a home in a short temporary folder; a thread per connection."""

    def __init__(
        self, behaviour: Behaviour = echo, *, service: str = "orchestrator", backlog: int = 128
    ) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
        self.path = self.home / f".mortise/run/{service}.sock"
        self.path.parent.mkdir(parents=True)
        self.behaviour = behaviour
        self.requests: list[list[Any]] = []
        self.notices: list[list[Any]] = []
        self.connections: list[socket.socket] = []
        self.began, self.ended = threading.Event(), threading.Event()
        """A request came; a connection was closed by its client."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(backlog)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends the accept that waits
        self.stop_listening()
        self.break_connections()
        shutil.rmtree(self.home)

    def stop_listening(self) -> None:
        """Close the listener; its socket file stays, as after a kill."""
        self._listener.close()

    def break_connections(self) -> None:
        """Close every connection, as a killed service does."""
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # its client was faster

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        unpacker = msgpack.Unpacker(timestamp=3)
        with connection:
            while chunk := self._read(connection):
                unpacker.feed(chunk)
                for frame in unpacker:
                    if frame[0] == 2:
                        self.notices.append(frame)
                    elif not self._answer(connection, frame):
                        return
        self.ended.set()

    def _read(self, connection: socket.socket) -> bytes:
        try:
            return connection.recv(65_536)
        except OSError:
            return b""

    def _answer(self, connection: socket.socket, frame: list[Any]) -> bool:
        with self._lock:
            self.requests.append(frame)
            number = len(self.requests)
        self.began.set()
        for step in self.behaviour(number, frame):
            if step is None:
                return False
            connection.sendall(step)
        return True
