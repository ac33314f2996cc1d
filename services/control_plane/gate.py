"""A gate for readers: the writer closes it for a moment to empty the write-ahead log."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ReadGate:
    """Readers pass while it is open; closing waits for those inside. Threads of any kind."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_closed = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Be inside; waits while the gate is closed, which the writer bounds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self, wait_s: float) -> Iterator[bool]:
        """Hold new readers back; whether all inside left within `wait_s`. One writer only."""
        with self._changed:
            assert not self._is_closed, "one writer closes the gate"
            self._is_closed = True
            is_empty = self._changed.wait_for(lambda: self._inside == 0, wait_s)
        try:
            yield is_empty
        finally:
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()
