"""The line between the supervisor and one child: small typed messages over a SEQPACKET pair.

One message is one packet, so there is no framing; the end of the other process is an empty read.
"""

import asyncio
import socket
from collections.abc import Callable

import msgspec

EXIT_REFUSED = 78
"""How a child that cannot use what it was given ends, its reason the last line on its stderr: the
supervisor starts no other at once. Source: sysexits(3), EX_CONFIG."""
EXIT_UNFIT = 75
"""How a child ends that can no longer do its work (`shared.service.Unfit`), its reason the last
line on its stderr: another may at once. Source: sysexits(3), EX_TEMPFAIL."""
message_bytes_max = 64 * 1024
"""Of a message; a fork request may be larger."""


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of every message."""


class Hello(Message, frozen=True):
    """Child: adopted and bound to the supervisor; `pid` is its process."""

    pid: int


class Ready(Message, frozen=True):
    """Child: loaded and warm, may be probed; seconds that each step of the start took."""

    durations_s: dict[str, float]


class Durations(Message, frozen=True):
    """Child: seconds of its steps again, after more of them were done (a model loaded)."""

    durations_s: dict[str, float]


class Beat(Message, frozen=True):
    """Child, each `heartbeat_s`: its loop turns; `lag_s` is how late this beat was."""

    lag_s: float


class Promoted(Message, frozen=True):
    """Child: accepts connections now."""


class Stopped(Message, frozen=True):
    """Child: accepts no more connections."""


class Promote(Message, frozen=True):
    """Supervisor: the predecessor is gone or has stopped accepting; accept. `trace_id` names the
    operation that asks for it."""

    trace_id: str


class Stop(Message, frozen=True):
    """Supervisor: a successor stands ready; accept no more."""


class Pressure(Message, frozen=True):
    """Supervisor, each second while memory is short: refuse new requests of the risk `classes`,
    and with `unload` let go of versions that nothing routes to; `reason` is for people. Without
    either it is over."""

    reason: str = ""
    classes: list[int] = []
    unload: bool = False


FromChild = Hello | Ready | Durations | Beat | Promoted | Stopped
FromSupervisor = Promote | Stop | Pressure
_encoder = msgspec.msgpack.Encoder()
_from_child = msgspec.msgpack.Decoder(FromChild)
_from_supervisor = msgspec.msgpack.Decoder(FromSupervisor)


def pair() -> tuple[socket.socket, socket.socket]:
    """The supervisor's and the child's end, neither inheritable."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Channel:
    """One end. `on_message` is called on the loop; `on_closed` once, when the other end is gone."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        is_child: bool,
        on_message: Callable[[Message], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._socket = sock
        self._decoder: msgspec.msgpack.Decoder[FromChild] | msgspec.msgpack.Decoder[FromSupervisor]
        self._decoder = _from_supervisor if is_child else _from_child
        self._on_message, self._on_closed = on_message, on_closed
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, message: Message) -> bool:
        """Send now; False when the other end is gone or does not read (its queue is full)."""
        try:
            self._socket.send(_encoder.encode(message))
        except OSError:
            return False
        return True

    def send_packet(self, packet: bytes, descriptors: list[int]) -> bool:
        """Send raw bytes with copies of descriptors (a fork request); False as for `send`."""
        try:
            socket.send_fds(self._socket, [packet], descriptors)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Stop reading and close; `on_closed` is not called. Harmless when closed."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _readable(self) -> None:
        try:
            packet = self._socket.recv(message_bytes_max)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self.close()
            self._on_closed()
            return
        self._on_message(self._decoder.decode(packet))
