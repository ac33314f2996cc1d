"""A thread of its own that runs one job after another and answers on the loop.

Not an executor: no future and no lock per job. Jobs do not raise; one that does has a defect, and
the error is handed to the loop like a result.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.model_runtime.watch import Watched


@dataclass(frozen=True, slots=True)
class Raised:
    """Instead of a result: the job raised."""

    error: Exception


def attempt(job: Callable[[], Any]) -> Any:
    """The job's result, or `Raised`."""
    try:
        return job()
    except Exception as error:  # noqa: BLE001 — not swallowed: whoever takes the result logs it
        return Raised(error)


Job = tuple[Callable[[], Any], Callable[[Any], None]]


class Worker:
    """`submit`, `pending` and `close` belong to the loop's thread."""

    def __init__(self, name: str, initialise: Callable[[], None]) -> None:
        """`initialise` runs first, on the new thread (torch keeps its thread count per thread)."""
        self.pending = self.ended = 0
        self._watched: deque[Watched | None] = deque()
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, args=(initialise,), name=name, daemon=True
        )
        self._thread.start()

    def submit(
        self, job: Callable[[], Any], done: Callable[[Any], None], watched: Watched | None = None
    ) -> None:
        """Run `job` on the thread after the ones before it, then `done(result)` on the loop;
        `watched` tells how it gets on."""
        self.pending += 1
        self._watched.append(watched)
        self._jobs.put((job, done))

    def running(self) -> Watched | None:
        """Of the job that runs, or whose result is on its way to the loop."""
        return self._watched[0] if self._watched else None

    def close(self) -> None:
        """End the thread after the job in progress; it is not waited for."""
        self._jobs.put(None)

    def _run(self, initialise: Callable[[], None]) -> None:
        initialise()
        while (taken := self._jobs.get()) is not None:
            job, done = taken
            result = attempt(job)
            try:
                self._loop.call_soon_threadsafe(self._done, done, result)
            except RuntimeError:
                return  # the loop is closed: nobody waits for answers any more
            del taken, job, done, result  # nothing is kept alive while waiting

    def _done(self, done: Callable[[Any], None], result: Any) -> None:
        self.pending -= 1
        self.ended += 1
        self._watched.popleft()
        done(result)
