"""What children write to stderr: each line becomes a record of the supervisor's log.

Tracebacks of a dying interpreter, warnings of the loader and of native libraries end up here.
"""

import asyncio
import os
from collections import deque

from shared import logs

log = logs.get("supervisor.stderr")
line_bytes_max = 4_096
lines_kept_max = 20
"""Last lines of a child, shown when it fails to start."""
lines_per_turn_max = 64
"""A flood is dropped beyond this many lines each `_turn_s`, and counted."""
_turn_s = 1.0
_read_bytes = 64 * 1024


class StderrPipe:
    """The reading end for one child; `descriptor` is the end that the child gets."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._loop = asyncio.get_running_loop()
        self._read, self.descriptor = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.descriptor, True)
        self._pending = b""
        self._turn_ends_s = 0.0
        self._lines_in_turn = 0
        self.last_lines: deque[str] = deque(maxlen=lines_kept_max)
        self._loop.add_reader(self._read, self._readable)

    def close_child_end(self) -> None:
        """The child has its copy; ours would hide that it ended."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def close(self) -> None:
        """Take what is left and stop reading. Harmless when closed."""
        self.close_child_end()
        if self._read >= 0:
            self._readable()
        self._end()

    def _end(self) -> None:
        if self._read >= 0:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._read = -1
            self._take(self._pending)
            self._pending = b""

    def _readable(self) -> None:
        try:
            chunk = os.read(self._read, _read_bytes)
        except BlockingIOError:
            return
        if not chunk:
            self._end()
            return
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        for line in lines:
            self._take(line)
        if len(self._pending) > line_bytes_max:
            self._take(self._pending)
            self._pending = b""

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        text = line[:line_bytes_max].decode(errors="backslashreplace")
        self.last_lines.append(text)
        now_s = self._loop.time()
        if now_s >= self._turn_ends_s:
            if self._lines_in_turn > lines_per_turn_max:
                dropped = self._lines_in_turn - lines_per_turn_max
                log.warning("stderr_dropped", child=self._label, count=dropped)
            self._turn_ends_s, self._lines_in_turn = now_s + _turn_s, 0
        self._lines_in_turn += 1
        if self._lines_in_turn <= lines_per_turn_max:
            log.warning("stderr", child=self._label, line=text)
