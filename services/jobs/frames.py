"""Cuts what arrives on a client's connection into whole messages, as cheaply as a load generator
must: a chunk that is one message is not copied. Trusts its peer; the services use
`shared.wire.framing`.
"""

import msgpack

_buffer_bytes_max = 2**26


class Frames:
    """The messages of one connection, in order."""

    def __init__(self) -> None:
        self._scanner = msgpack.Unpacker(read_size=4096, max_buffer_size=_buffer_bytes_max)
        self._open = bytearray()
        self._done = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The messages that this chunk completes."""
        self._scanner.feed(chunk)
        pending: bytes | bytearray = chunk
        if self._open:
            self._open += chunk
            pending = self._open
        frames: list[bytes] = []
        start = 0
        while True:
            try:
                self._scanner.skip()
            except msgpack.OutOfData:
                break
            end = self._scanner.tell() - self._done
            frames.append(bytes(pending[start:end]))
            start = end
        if pending is chunk:
            self._open += chunk[start:]
        else:
            del self._open[:start]
        self._done += start
        return frames
