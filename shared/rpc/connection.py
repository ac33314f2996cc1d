"""One end of a connection, whichever side: bytes in to envelopes, messages out to one write a turn.

What a message means is the subclass's: `shared.rpc.session` answers, `shared.rpc.link` asks.
"""

import asyncio
from typing import Any, ClassVar, Final

from contracts.frames import Envelope
from contracts.limits import stream_pause_bytes, write_buffer_bytes_max
from shared.wire.codec import DECODE_ERRORS, decode_envelope
from shared.wire.framing import ENVELOPE_HEADS, Frame, Framer, HeldBytes

turn_frames_max = 128
"""Messages of chunks with several that are handled in one loop turn, at most 5 ms if each is
refused; a chunk may hold 25,000. All connections together: with so many of each, 16 clients that
send more than can be served would keep the answers of the runtimes from being read."""
turn_frames_min = 8
"""So many of a connection all the same, so that each gets on. With 32 and 2 the turns themselves
cost more than the refusals: see docs/log.md."""
turn_bytes_min: Final = 65_536
"""After a chunk of this size the connection waits for the next turn: libuv would read up to 32
chunks of 256,000 bytes at once, 40 ms of scanning."""

SLOW_READER = "write_buffer_bytes_max"
"""The fault of a peer that does not read what it asked for."""
close_s_max = 5.0
"""What is unsent when a connection is closed may take this long."""
_decode_envelope: Final = decode_envelope
_write_buffer_max: Final = write_buffer_bytes_max


class Flusher:
    """Writes what the connections of one loop gathered, once per connection: at the end of the
    chunk that caused it, or of the turn."""

    _latest: "ClassVar[Flusher | None]" = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.dirty: list[Connection] = []
        self._frames_left = turn_frames_max

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "Flusher":
        """The one of this loop, so that a chunk of any connection flushes what it caused on any
        other. A process has one loop; more of them would only coalesce less."""
        if cls._latest is None or cls._latest.loop is not loop:
            cls._latest = cls(loop)
        return cls._latest

    def allow(self, frames: int) -> int:
        """How many of so many messages (≥ 1) a connection may handle in this turn."""
        left = self._frames_left
        if left == turn_frames_max:
            self.loop.call_soon(self._renew)
        allowed = min(frames, max(turn_frames_min, left))
        self._frames_left = max(0, left - allowed)
        return allowed

    def _renew(self) -> None:
        """The next turn."""
        self._frames_left = turn_frames_max

    def add(self, connection: "Connection") -> None:
        """Flush this connection soon."""
        if not self.dirty:
            self.loop.call_soon(self.flush)
        self.dirty.append(connection)

    def flush(self) -> None:
        """Flush them now: a turn of the loop costs more than asking whether there is something."""
        dirty, self.dirty = self.dirty, []
        for connection in dirty:
            connection.flush()


class Connection:
    """Bounded framing in and bounded, coalesced writing out. One loop's thread only.

    An `asyncio.Protocol` in all but the base class, which a compiled class cannot have.

    Subclasses append whole messages to `out` and then call `sent`. Rules: `out` is handed to the
    transport and never touched again; a peer that leaves more than `write_buffer_bytes_max` unsent
    is aborted; `fault` says why we closed, and is None when the peer did.
    """

    __slots__ = ("_awaits_flush", "_closing", "_flusher", "_framer", "_in_chunk", "_later", "fault",
                 "is_closing", "out", "owes_resume", "reader_is_slow", "transport")  # fmt: skip

    def __init__(self, flusher: Flusher, held: HeldBytes) -> None:
        self.transport: asyncio.Transport | None = None
        self.out = bytearray()
        self.reader_is_slow = False
        self.owes_resume = False
        self.fault: str | None = None
        self.is_closing = False
        self._flusher = flusher
        self._framer = Framer(held)
        self._in_chunk = False
        self._later: list[Frame] = []
        self._closing: asyncio.TimerHandle | None = None
        self._awaits_flush = False

    # What a subclass does with it.

    def chunk_arrived(self) -> None:
        """Called once before the messages of a chunk."""

    def received(self, envelope: Envelope) -> None:
        """Called for each message, in order."""
        raise NotImplementedError

    def received_directly(self, chunk: bytes) -> bool:
        """Called first with a chunk that may be one message; True when it was, and is handled."""
        return False

    def undecodable(self, frame: Frame) -> bool:
        """A frame that is no envelope; False closes the connection."""
        return False

    def violated(self, fault: str, opening: bytes) -> None:
        """Called once when the peer sent what is no message, or breaks a limit and begins so (else
        empty): the connection is closed next."""

    def resumed(self) -> None:
        """Called once there is room again, if `owes_resume` was set."""

    def lost(self) -> None:
        """The connection is gone; `fault` says why, if it was us."""

    # Out.

    def sent(self) -> None:
        """A whole message was appended to `out`: it leaves at the end of the chunk or turn."""
        if len(self.out) > _write_buffer_max:
            self.abort(SLOW_READER)
        elif not self._in_chunk and not self._awaits_flush:
            self._awaits_flush = True
            self._flusher.add(self)

    def flush(self) -> None:
        """Hand `out` to the transport."""
        self._awaits_flush = False
        out, transport = self.out, self.transport
        if not out or transport is None:
            return
        # Measured before this write: what earlier turns could not get rid of. While the reader is
        # not slow it is less than `stream_pause_bytes`.
        if self.reader_is_slow and transport.get_write_buffer_size() > write_buffer_bytes_max:
            self.abort(SLOW_READER)
            return
        self.out = bytearray()
        transport.write(out)
        if self.owes_resume:
            self._flusher.loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Senders that stopped because `out` was full go on, unless the reader is slow."""
        if self.owes_resume and not self.reader_is_slow:
            self.owes_resume = False
            self.resumed()

    def close(self) -> None:
        """Send what is waiting, then close; a reader that does not take it is aborted."""
        self.flush()
        if self.transport is not None and not self.is_closing:
            self.is_closing = True
            self.transport.close()
            self._closing = self._flusher.loop.call_later(close_s_max, self.abort, SLOW_READER)

    def abort(self, fault: str) -> None:
        """Close at once; unsent bytes are dropped."""
        if self.transport is None:
            return
        self.is_closing = True
        if self.fault is None:
            self.fault = fault
        self.out = bytearray()
        self.transport.abort()

    # asyncio.Protocol.

    def connection_made(self, transport: Any) -> None:
        """The loop's: the connection exists."""
        transport.set_write_buffer_limits(stream_pause_bytes, stream_pause_bytes // 2)
        self.transport = transport

    def data_received(self, chunk: bytes) -> None:
        """The loop's: some bytes. A large chunk pauses reading, so that others get their turn."""
        if self.is_closing:
            return
        self.chunk_arrived()
        # By far the commonest chunk is one whole message, for which the framer is not needed.
        if len(chunk) < turn_bytes_min and not self._framer.pending:
            self._in_chunk = True
            if self.received_directly(chunk):
                self._end_chunk()
                return
            envelope = _whole(chunk)
            if envelope is not None:
                self.received(envelope)
                self._end_chunk()
                return
        self._handle(self._framer.feed(chunk))
        if self._is_behind() or (len(chunk) >= turn_bytes_min and not self.is_closing):
            self._pause()

    def _handle(self, frames: list[Frame]) -> None:
        """The messages of a chunk, as many as one turn allows."""
        if len(frames) > turn_frames_min:
            allowed = self._flusher.allow(len(frames))
            frames, self._later = frames[:allowed], frames[allowed:]
        self._in_chunk = True
        for frame in frames:
            try:
                envelope = decode_envelope(frame)
            except DECODE_ERRORS:
                if not self.undecodable(frame):
                    self._violate("not a MessagePack-RPC message", b"")
            else:
                self.received(envelope)
            if self.fault is not None or self.is_closing:
                break
        fault = self._framer.fault
        if fault is not None and self.fault is None and not self._later:
            self._violate(fault, self._framer.opening)
        self._end_chunk()

    def _violate(self, fault: str, opening: bytes) -> None:
        self.fault = fault
        self.violated(fault, opening)

    def _end_chunk(self) -> None:
        """What was answered leaves now."""
        self._in_chunk = False
        if self.fault is not None:
            self.close()
        elif self.out:
            self.flush()
        if self._flusher.dirty:
            self._flusher.flush()

    def _is_behind(self) -> bool:
        return (bool(self._later) or self._framer.is_behind) and not self.is_closing

    def _pause(self) -> None:
        """Read nothing more before the next turn, nor before every frame is handled."""
        if self.transport is not None:
            self.transport.pause_reading()
            self._flusher.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self.is_closing or self.transport is None:
            return
        later, self._later = self._later, []
        self._handle(later or self._framer.catch_up())
        if self._is_behind():
            self._flusher.loop.call_soon(self._go_on)
        elif not self.is_closing:
            self.transport.resume_reading()

    def eof_received(self) -> None:
        """The loop's: the peer sends no more; returning None closes."""

    def pause_writing(self) -> None:
        """The loop's: over `stream_pause_bytes` unsent."""
        self.reader_is_slow = True

    def resume_writing(self) -> None:
        """The loop's: half of that again."""
        self.reader_is_slow = False
        self._resume()

    def connection_lost(self, _error: Exception | None) -> None:
        """The loop's: over."""
        self.is_closing = True
        self.transport = None
        if self._closing is not None:
            self._closing.cancel()  # its timer would keep this object for seconds
        self._framer.close()
        self.lost()


def _whole(chunk: bytes) -> Envelope | None:
    """The message that the chunk is, if it is exactly one; decoding it finds its end too."""
    if chunk[0] not in ENVELOPE_HEADS:
        return None
    try:
        return _decode_envelope(chunk)
    except DECODE_ERRORS:
        return None
