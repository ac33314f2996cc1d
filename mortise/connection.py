"""One blocking connection to a service's Unix socket. Used by one thread at a time."""

import random
import select
import socket
import time
from collections import deque

from mortise.addresses import mesh_down
from mortise.generated import PermissionDenied
from mortise.retry import Lost, dial_wait_s
from mortise.wire import CHUNK_BYTES, Answer, Incoming, Notice, WireError


class Connection:
    """An open connection. Any error that it raises leaves it closed."""

    def __init__(self, path: str, deadline_s: float) -> None:
        """Dial until `deadline_s` (monotonic). Raises MeshDown, or Lost when it is not taken."""
        self.path = path
        self._socket = dial(path, deadline_s)
        self._incoming = Incoming()
        self._messages: deque[Answer | Notice] = deque()
        self._next_msgid = 0
        self._goes_away = False

    def next_msgid(self) -> int:
        """A msgid that this connection has not used for 2³² calls."""
        self._next_msgid = (self._next_msgid + 1) % 2**32
        return self._next_msgid

    def send(self, frame: bytes, deadline_s: float) -> None:
        """Write a frame whole. Raises Lost; a peer that closed meanwhile may have said why, which
        `receive` finds out."""
        try:
            self._socket.settimeout(max(0.001, deadline_s - time.monotonic()))
            self._socket.sendall(frame)
        except (BrokenPipeError, ConnectionResetError):
            return
        except OSError as error:
            self.close()
            raise Lost(f"the connection to {self.path} broke: {error}") from error

    def receive(self, msgid: int, deadline_s: float) -> Answer | Notice:
        """The next answer to, or stream item of, a call. Raises Lost, or TimeoutError."""
        while True:
            while self._messages:
                message = self._messages.popleft()
                if isinstance(message, Answer):
                    if message.msgid == msgid:
                        return message
                elif message.method == "goaway":
                    self._goes_away = True
                elif message.method == "stream" and message.params[:1] == [msgid]:
                    return message
            self._messages.extend(self._read(deadline_s))

    def is_usable(self) -> bool:
        """Whether a new call may start here: nothing came meanwhile (an end, a goaway)."""
        if self._goes_away or self._messages:
            return False
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return not waiting.poll(0)

    def close(self) -> None:
        """Close; the service cancels what is in flight."""
        self._socket.close()

    def _read(self, deadline_s: float) -> list[Answer | Notice]:
        try:
            self._socket.settimeout(max(0.0001, deadline_s - time.monotonic()))
            chunk = self._socket.recv(CHUNK_BYTES)
            messages = list(self._incoming.feed(chunk))
        except TimeoutError:
            self.close()
            raise
        except (OSError, WireError) as error:
            self.close()
            raise Lost(f"the connection to {self.path} broke: {error}") from error
        if not chunk:
            self.close()
            raise Lost(f"the connection to {self.path} was closed before the answer")
        return messages


def dial(path: str, deadline_s: float) -> socket.socket:
    """A connected socket. A full backlog (EAGAIN) is tried again with jitter until the deadline:
    a blocking connect with a time-out would fail at once, and asyncio's claim to be connected.
    """
    attempt = 0
    while True:
        try:
            return dial_once(path)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise Lost(f"{path} accepts no connection: its backlog is full") from None
        time.sleep(dial_wait_s(attempt, random.random()))
        attempt += 1


def dial_once(path: str) -> socket.socket:
    """A connected non-blocking socket. Raises BlockingIOError on a full backlog, MeshDown when
    nobody listens, PermissionDenied when this user may not connect."""
    connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connecting.setblocking(False)
    try:
        connecting.connect(path)
    except BlockingIOError:
        connecting.close()
        raise
    except PermissionError as error:
        connecting.close()
        raise PermissionDenied(f"this user may not connect to {path}") from error
    except OSError as error:
        connecting.close()
        raise mesh_down(path, error.strerror or str(error)) from error
    return connecting
