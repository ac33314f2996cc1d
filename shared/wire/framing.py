"""Cuts a byte stream into MessagePack frames, and bounds what a peer can make us hold.

A frame is one complete MessagePack array of three or four elements, given out undecoded. The C
scanner of `msgpack` finds the ends; it has no limits of its own, so the bytes that are held are
counted here. No I/O.
"""

from msgpack import FormatError, OutOfData, StackError, Unpacker

from contracts.limits import frame_bytes_max

SCANNER_READ_BYTES = 4_096
"""The scanner's first buffer; its default of 1 MiB would be paid for every connection."""
SCANNER_KEPT_BYTES = 262_144
"""After a longer frame the scanner is replaced, because its buffer never shrinks."""
ENVELOPE_HEADS = (0x93, 0x94)
"""fixarray of 3 (notification) and 4 (request, response): what every frame begins with."""

Frame = bytes | memoryview


class HeldBytes:
    """The bytes of incomplete frames that all connections of one server may hold together."""

    __slots__ = ("held", "limit")

    def __init__(self, limit: int) -> None:
        self.held = 0
        self.limit = limit


class Framer:
    """The frames of one connection.

    After a violation `fault` says what was wrong and nothing more is given out: the connection
    must be closed. Frames completed before the violation are given out, however the stream was
    split into chunks. `close` gives back what it holds.
    """

    __slots__ = ("_fed", "_held", "_limit", "_open", "_scanner", "fault")

    def __init__(self, held: HeldBytes, *, limit: int = frame_bytes_max) -> None:
        self.fault: str | None = None
        self._held = held
        self._limit = limit
        self._open = bytearray()
        self._renew()

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that `chunk` completes, in order, read-only.

        A frame views the chunk where it can, so keeping one keeps its whole chunk.
        """
        frames: list[Frame] = []
        if self.fault is not None:
            return frames
        # Offsets count from the start of the chunk; an open frame began before it.
        start, end = -len(self._open), len(chunk)
        self._scanner.feed(chunk)
        self._fed += end
        try:
            while start < end:
                if start >= 0 and chunk[start] not in ENVELOPE_HEADS:
                    return self._fail(frames, "not a MessagePack-RPC message")
                self._scanner.skip()
                stop = end - self._fed + self._scanner.tell()
                if stop - start > self._limit:
                    return self._fail(frames, f"frame is longer than {self._limit} bytes")
                frames.append(self._cut(chunk, start, stop))
                start = stop
        except OutOfData:
            return self._keep(chunk, start, frames)
        except (FormatError, StackError) as error:
            return self._fail(frames, f"not MessagePack: {type(error).__name__}")
        return frames

    def close(self) -> None:
        """Drop the incomplete frame; nothing is fed any more."""
        self._held.held -= len(self._open)
        self._open = bytearray()

    def _cut(self, chunk: bytes, start: int, stop: int) -> Frame:
        """The frame that ends at `stop`: the chunk itself, a view of it, or the open frame."""
        if start >= 0:
            return chunk if stop - start == len(chunk) else memoryview(chunk)[start:stop]
        self._held.held += start
        self._open += memoryview(chunk)[:stop]
        # The buffer is handed over, never reused.
        frame = memoryview(self._open).toreadonly()
        self._open = bytearray()
        if len(frame) > SCANNER_KEPT_BYTES:
            self._renew()
            self._scanner.feed(memoryview(chunk)[stop:])
            self._fed = len(chunk) - stop
        return frame

    def _keep(self, chunk: bytes, start: int, frames: list[Frame]) -> list[Frame]:
        """Hold the beginning of a frame until the rest arrives."""
        if len(chunk) - start > self._limit:
            return self._fail(frames, f"frame is longer than {self._limit} bytes")
        added = memoryview(chunk)[max(start, 0) :]
        if self._held.held + len(added) > self._held.limit:
            return self._fail(frames, f"incomplete frames hold {self._held.limit} bytes already")
        self._held.held += len(added)
        self._open += added
        return frames

    def _renew(self) -> None:
        # max_buffer_size 0 is the largest: the scanner's own limit also hits legal frames.
        self._scanner = Unpacker(read_size=SCANNER_READ_BYTES, max_buffer_size=0)
        self._fed = 0

    def _fail(self, frames: list[Frame], fault: str) -> list[Frame]:
        self.fault = fault
        self.close()
        self._renew()
        return frames
