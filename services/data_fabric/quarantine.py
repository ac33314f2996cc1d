"""Refused rows kept for a while, so that their owner can see what was sent.

JSON lines below `.mortise/fabric/quarantine/`, mode 0600, written by a thread. Bounded three ways:
rows waiting for the thread, bytes of all files, days that a file is kept; what does not fit is
dropped and counted. The rows may be personal data.
"""

import contextlib
import os
import queue
import threading
from dataclasses import dataclass
from pathlib import Path

import msgspec

from contracts.policies import RetentionSpec
from services.data_fabric.config import (
    quarantine_file_bytes,
    quarantine_row_bytes,
    quarantine_waiting_max,
)
from services.data_fabric.validation import Refused
from shared import logs
from shared.clock import Clock

log = logs.get("services.data_fabric")


@dataclass(frozen=True, slots=True)
class Entry:
    """One refused row of a request."""

    at_us: int
    trace_id: str
    view: str
    version: str
    refused: Refused
    content: bytes


class Quarantine:
    """`put` is for the loop's thread and never waits."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.written = 0
        self._refused = 0
        self._lost = 0
        self._folder = folder
        self._clock = clock
        self._retention = RetentionSpec()
        self._waiting: queue.Queue[Entry | None] = queue.Queue(quarantine_waiting_max)
        self._thread = threading.Thread(target=self._run, name="quarantine", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Rows that were not kept: the queue was full, or the disk refused."""
        return self._refused + self._lost

    def retain(self, retention: RetentionSpec) -> None:
        """Take over the policy in force."""
        self._retention = retention

    def put(self, trace_id: str, view: str, version: str, refused: Refused) -> None:
        """Keep a refused row, or as much of it as `quarantine_row_bytes` allows."""
        content = refused.raw[:quarantine_row_bytes]
        at_us = self._clock.wall_us()
        try:
            self._waiting.put_nowait(Entry(at_us, trace_id, view, version, refused, content))
        except queue.Full:
            self._refused += 1

    def close(self) -> None:
        """Write what waits and end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_open = True
        while is_open:
            taken = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    taken.append(self._waiting.get_nowait())
            is_open = None not in taken
            entries = [entry for entry in taken if entry is not None]
            try:
                self._write(entries)
            except OSError as error:
                self._lost += len(entries)
                log.warning("quarantine_failed", reason=str(error))

    def _write(self, entries: list[Entry]) -> None:
        if not entries:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = b"".join(_line(entry) for entry in entries)
        files = sorted(self._folder.glob("*.jsonl"))
        self._remove_old(files, len(lines))
        path = files[-1] if files and files[-1].exists() else None
        if path is None or path.stat().st_size + len(lines) > quarantine_file_bytes:
            path = self._folder / f"{self._clock.wall_us():020d}.jsonl"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, lines)
        finally:
            os.close(descriptor)
        self.written += len(entries)

    def _remove_old(self, files: list[Path], incoming: int) -> None:
        oldest_s = self._clock.wall() - self._retention.dumps_days * 86_400
        sizes = {path: path.stat().st_size for path in files}
        total = sum(sizes.values()) + incoming
        for path in files:
            if total > self._retention.dumps_bytes_max or path.stat().st_mtime < oldest_s:
                path.unlink()
                total -= sizes[path]


def _line(entry: Entry) -> bytes:
    """One JSON line; a row that is cut, or no JSON (binary values), is kept as base64."""
    error = entry.refused.error
    record = {
        "at_us": entry.at_us,
        "trace_id": entry.trace_id,
        "view": entry.view,
        "view_version": entry.version,
        "row": entry.refused.row,
        "message": error.message,
        "details": error.details,
    }
    try:
        content = msgspec.msgpack.decode(entry.content)
        return msgspec.json.encode({**record, "content": content}) + b"\n"
    except (msgspec.MsgspecError, TypeError, ValueError):
        return msgspec.json.encode({**record, "encoded": entry.content}) + b"\n"
