"""The floor under `benchmarks/serving.py`: one hop, no product.

`python -m benchmarks.floor SOCKET`: a uvloop server that cuts frames with the same C scanner and
answers each with constant bytes as long as a real answer. It decodes nothing, checks nothing,
queues nothing, records nothing; two such hops are the least that client → orchestrator → runtime
can cost. Prints "ready"; ends on SIGTERM.
"""

import asyncio
import signal
import sys
import time
from typing import Any

import msgpack
import uvloop

LOOP_COUNT = 1_000_000
ANSWER_BYTES = 1_100
"""About the length of a `tiny` answer with lineage and times."""
_OUTPUT = {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": bytes(8)}
_TAIL = msgpack.packb(None) + msgpack.packb({"outputs": [_OUTPUT], "rest": "x" * ANSWER_BYTES})


class Echo(asyncio.Protocol):
    """One connection; the msgid of a request's frame goes into the constant answer."""

    def connection_made(self, transport: Any) -> None:
        """The loop's."""
        self.transport = transport
        self._unpacker = msgpack.Unpacker(read_size=4096, max_buffer_size=2**26)
        self._open = bytearray()
        self._done = 0

    def data_received(self, chunk: bytes) -> None:
        """Answer every whole request of the chunk with one write."""
        self._unpacker.feed(chunk)
        self._open += chunk
        answers, start = bytearray(), 0
        while True:
            try:
                self._unpacker.skip()
            except msgpack.OutOfData:
                break
            end = self._unpacker.tell() - self._done
            answers += b"\x94\x01" + self._open[start + 2 : start + 7] + _TAIL
            start = end
        del self._open[:start]
        self._done += start
        self.transport.write(bytes(answers))


def loop_ns() -> float:
    """Nanoseconds of one turn of an empty Python loop: how fast this machine is just now."""
    began_s, total = time.process_time(), 0
    for index in range(LOOP_COUNT):
        total += index
    return round((time.process_time() - began_s) * 1e9 / LOOP_COUNT, 1)


async def _serve(path: str) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    server = await loop.create_unix_server(Echo, path)
    print("ready", flush=True)
    await stopped.wait()
    server.close()


if __name__ == "__main__":
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(_serve(sys.argv[1]))
