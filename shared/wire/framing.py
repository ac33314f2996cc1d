"""Cuts a byte stream into MessagePack frames, and bounds what a peer can make us hold.

A frame is one complete MessagePack array of three or four elements, given out undecoded. The C
scanner of `msgpack` finds the ends; it has no limits of its own, so the bytes that are held are
counted here. No I/O.
"""

from typing import Final

from msgpack import FormatError, OutOfData, StackError, Unpacker

from contracts.limits import frame_bytes_max, frame_objects_max, frame_str_bytes_max
from shared.wire.walk import Progress, Violation, Walk

SCANNER_READ_BYTES = 4_096
"""The scanner's first buffer; its default of 1 MiB would be paid for every connection."""
WALKED_BYTES_MIN = 262_144
"""An incomplete frame of this size is walked instead of scanned: the scanner's buffer would hold
it once more, and never shrink. It is also the largest read of a loop, so that every frame of twice
this size is walked, however it is split; a shorter one cannot break a limit of the walk."""
OPENING_BYTES = 16
"""Of a refused frame, which is more than the type and msgid of a request take."""
ENVELOPE_HEADS: Final = (0x93, 0x94)
"""fixarray of 3 (notification) and 4 (request, response): what every frame begins with."""

Frame = bytes | memoryview

assert min(frame_objects_max, frame_str_bytes_max) >= 2 * WALKED_BYTES_MIN, "as said above"


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
    split into chunks. `opening` is how a large frame begins that broke a limit, else empty.
    While `is_behind` the caller must call `catch_up` in its next turns before
    it feeds more. `pending` is what arrived of an incomplete frame; `close` gives it back.
    """

    __slots__ = ("_fed", "_held", "_limit", "_scanner", "_walk", "fault", "is_behind", "opening",
                 "pending")  # fmt: skip

    def __init__(self, held: HeldBytes, *, limit: int = frame_bytes_max) -> None:
        self.fault: str | None = None
        self.opening = b""
        self.is_behind = False
        self._held = held
        self._limit = limit
        self.pending = bytearray()
        self._walk: Walk | None = None
        self._renew()

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that `chunk` completes, in order, read-only.

        A frame views the chunk where it can, so keeping one keeps its whole chunk.
        """
        frames: list[Frame] = []
        if self.fault is not None:
            return frames
        if self._walk is not None:
            self._hold(chunk)
            return self._step(frames, self._walk)
        # Offsets count from the start of the chunk; an open frame began before it.
        start, end = -len(self.pending), len(chunk)
        self._scanner.feed(chunk)
        self._fed += end
        try:
            while start < end:
                if start >= 0 and chunk[start] not in ENVELOPE_HEADS:
                    return self._fail(frames, "not a MessagePack-RPC message")
                self._scanner.skip()
                stop = end - self._fed + self._scanner.tell()
                if stop - start > self._limit:
                    return self._fail(frames, self._too_long())
                frames.append(self._cut(chunk, start, stop))
                start = stop
        except OutOfData:
            return self._keep(frames, memoryview(chunk)[max(start, 0) :])
        except (FormatError, StackError) as error:
            return self._fail(frames, f"not MessagePack: {type(error).__name__}")
        return frames

    def catch_up(self) -> list[Frame]:
        """Go on with a large frame; the frames that this completes."""
        self.is_behind = False
        return [] if self._walk is None else self._step([], self._walk)

    def close(self) -> None:
        """Drop the incomplete frame; nothing is fed any more."""
        self._held.held -= len(self.pending)
        self.pending = bytearray()
        self._walk = None
        self.is_behind = False

    def _cut(self, chunk: bytes, start: int, stop: int) -> Frame:
        """The frame that ends at `stop`: the chunk itself, a view of it, or the open frame."""
        if start >= 0:
            return chunk if stop - start == len(chunk) else memoryview(chunk)[start:stop]
        self.pending += memoryview(chunk)[:stop]
        self._held.held += start
        return self._take_open()

    def _take_open(self) -> memoryview:
        """The open frame. Its buffer is handed over, never reused."""
        frame = memoryview(self.pending).toreadonly()
        self.pending = bytearray()
        return frame

    def _hold(self, part: bytes | memoryview) -> None:
        self._held.held += len(part)
        self.pending += part

    def _keep(self, frames: list[Frame], rest: memoryview) -> list[Frame]:
        """Hold the beginning of a frame; a large one leaves the scanner, which copies it."""
        self._hold(rest)
        if len(self.pending) > self._limit:
            return self._refuse(frames, self._too_long())
        if len(self.pending) < WALKED_BYTES_MIN:
            return self._check_held(frames)
        self._renew()
        self._walk = Walk()
        return self._step(frames, self._walk)

    def _step(self, frames: list[Frame], walk: Walk) -> list[Frame]:
        """One slice of a large frame's walk; if it ends, the scanner takes what follows it."""
        try:
            progress = walk.advance(self.pending)
        except Violation as violation:
            return self._refuse(frames, str(violation))
        is_waiting = progress is Progress.NEEDS_BYTES  # then all that is held belongs to the frame
        if (len(self.pending) if is_waiting else walk.position) > self._limit:
            return self._refuse(frames, self._too_long())
        if progress is not Progress.DONE:
            self.is_behind = not is_waiting
            return self._check_held(frames)
        self._walk = None
        self._held.held -= len(self.pending)
        following = bytes(memoryview(self.pending)[walk.position :])
        frames.append(self._take_open()[: walk.position])
        return frames + self.feed(following) if following else frames

    def _check_held(self, frames: list[Frame]) -> list[Frame]:
        if self._held.held > self._held.limit:
            return self._fail(frames, f"incomplete frames hold {self._held.limit} bytes already")
        return frames

    def _renew(self) -> None:
        # max_buffer_size 0 is the largest: the scanner's own limit also hits legal frames.
        self._scanner = Unpacker(read_size=SCANNER_READ_BYTES, max_buffer_size=0)
        self._fed = 0

    def _too_long(self) -> str:
        return f"the frame is longer than frame_bytes_max, {self._limit} bytes"

    def _refuse(self, frames: list[Frame], fault: str) -> list[Frame]:
        """The open frame breaks a limit: nothing of it is kept but how it begins."""
        self.opening = bytes(self.pending[:OPENING_BYTES])
        return self._fail(frames, fault)

    def _fail(self, frames: list[Frame], fault: str) -> list[Frame]:
        self.fault = fault
        self.close()
        return frames
