"""Hand-written batching for servers that have none: as a careful engineer would write it.

One thread computes; while it is busy, requests gather. With a window of 0 an idle model is fed at
once; otherwise the first of a batch waits that long for others, or until the batch is full.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from network import ROWS_MAX, Model, window_s


class Batcher:
    """`await batcher.ask(body)` from any task of one loop."""

    def __init__(self, name: str) -> None:
        self._model, self._window_s = Model(name), window_s(name)
        self._computes_inline = name == "tiny"
        self._waiting: list[tuple[bytes, asyncio.Future[bytes]]] = []
        self._thread = ThreadPoolExecutor(1)
        self._is_due = False
        self._is_busy = False

    def ask(self, body: bytes) -> "asyncio.Future[bytes]":
        """The answer of one row."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        self._waiting.append((body, future))
        if self._is_busy:
            return future
        if len(self._waiting) >= ROWS_MAX:
            self._start()
        elif not self._is_due:
            self._is_due = True
            loop.call_later(self._window_s, self._start)
        return future

    def _start(self) -> None:
        self._is_due = False
        if self._is_busy or not self._waiting:
            return
        batch, self._waiting = self._waiting[:ROWS_MAX], self._waiting[ROWS_MAX:]
        bodies = [body for body, _ in batch]
        if self._computes_inline:
            # A forward of some 20 us costs less than handing it to another thread.
            self._end(batch, self._model.answer(bodies))
            return
        self._is_busy = True
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._model.answer, bodies)
        work.add_done_callback(lambda done: self._end(batch, done.result()))

    def _end(self, batch: list[tuple[bytes, "asyncio.Future[bytes]"]], found: list[bytes]) -> None:
        self._is_busy = False
        for (_, future), answer in zip(batch, found, strict=True):
            if not future.cancelled():
                future.set_result(answer)
        if self._waiting:
            self._start()
