"""gRPC over HTTP/2 with prebuilt frames: the generator pays a header walk per answer, no more.

Only what unary calls to a known server need. SETTINGS_HEADER_TABLE_SIZE is 0, so that no header
of the server has to be decoded: an answer is a DATA frame with the expected message, followed by
the trailers that end the stream; anything else is an error. Source: RFC 9113, RFC 7541 and gRPC's
"gRPC over HTTP2".
"""

import asyncio
import struct
from typing import Any

from benchmarks.generator import Load
from benchmarks.peers.truth import is_same

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW_BYTES_MAX = 2**31 - 1
_WINDOW_BYTES_FIRST = 65_535
_TABLE_SIZE, _WINDOW_SIZE = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """A header field that enters no table, name and value written out (RFC 7541, 6.2.2)."""
    assert len(name) < 127, "a longer length takes several bytes"
    assert len(value) < 127, "a longer length takes several bytes"
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def headers(path: str) -> bytes:
    """The header block of a unary gRPC call. 0x83 is :method POST, 0x86 :scheme http."""
    fields = {b":authority": b"localhost", b":path": path.encode(), b"te": b"trailers"}
    fields[b"content-type"] = b"application/grpc"
    return b"\x83\x86" + b"".join(_literal(name, value) for name, value in fields.items())


def message(body: bytes) -> bytes:
    """A length-prefixed gRPC message, not compressed."""
    return b"\x00" + len(body).to_bytes(4, "big") + body


class H2Client(asyncio.Protocol):
    """One connection; an answer's message must end with the row `expected`."""

    def __init__(self, load: Load, path: str, request: bytes, expected: bytes) -> None:
        self.load, self.expected = load, expected
        block, data = headers(path), message(request)
        self._head = len(block).to_bytes(3, "big") + bytes((_HEADERS, _END_HEADERS))
        self._block = block
        self._data_head = len(data).to_bytes(3, "big") + bytes((_DATA, _END_STREAM))
        self._data = data
        self._stream = 1
        self._msgids: dict[int, int] = {}
        self._bodies: dict[int, bytes] = {}
        self._room_bytes = _WINDOW_BYTES_FIRST
        self._open = b""

    def connection_made(self, transport: Any) -> None:
        """The loop's."""
        self.transport = transport
        settings = struct.pack(">HIHI", _TABLE_SIZE, 0, _WINDOW_SIZE, WINDOW_BYTES_MAX)
        grow = (WINDOW_BYTES_MAX - _WINDOW_BYTES_FIRST).to_bytes(4, "big")
        transport.write(_PREFACE + frame(_SETTINGS, 0, 0, settings) + frame(_WINDOW, 0, 0, grow))

    def send(self, msgid: int) -> None:
        """One call on a stream of its own."""
        stream = self._stream.to_bytes(4, "big")
        self._msgids[self._stream] = msgid
        self._stream += 2
        self._room_bytes -= len(self._data)
        if self._room_bytes < 0:
            self.load.error("the server's flow-control window is used up")
        self.transport.write(
            b"".join((self._head, stream, self._block, self._data_head, stream, self._data))
        )

    def data_received(self, chunk: bytes) -> None:
        """Every whole frame."""
        received = self._open + chunk if self._open else chunk
        start, length = 0, len(received)
        while length - start >= 9:
            end = start + 9 + int.from_bytes(received[start : start + 3], "big")
            if end > length:
                break
            kind, flags = received[start + 3], received[start + 4]
            stream = int.from_bytes(received[start + 5 : start + 9], "big")
            if kind == _DATA:
                self._bodies[stream] = self._bodies.get(stream, b"") + received[start + 9 : end]
                if flags & _END_STREAM:
                    self._end(stream)
            elif kind == _HEADERS:
                if flags & _END_STREAM:
                    self._end(stream)
            else:
                self._control(kind, flags, stream, received[start + 9 : end])
            start = end
        self._open = received[start:]

    def _control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _WINDOW and stream == 0:
            self._room_bytes += int.from_bytes(payload, "big")
        elif kind == _SETTINGS and not flags & _ACK:
            self.transport.write(frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self.transport.write(frame(_PING, _ACK, 0, payload))
        elif kind == _RESET:
            self._bodies.pop(stream, None)
            self._end(stream)
        elif kind == _GOAWAY:
            self.load.error(f"goaway {payload!r}")

    def _end(self, stream: int) -> None:
        body, msgid = self._bodies.pop(stream, b""), self._msgids.pop(stream)
        if is_same(body[-len(self.expected) :], self.expected):
            self.load.on_answer(self, msgid)
        else:
            self.load.on_failure(self, msgid, f"no answer, or another's: {body!r}")

    def connection_lost(self, error: Exception | None) -> None:
        """Everything in flight is lost."""
        if not self.load.is_over:
            for msgid in self._msgids.values():
                self.load.sent_s.pop(msgid, None)
                self.load.error(f"the server closed the connection: {error}")
