"""The last good policies of one instance on its own disk: written aside, renamed when in force.

Does not decide which set is newer; a file that cannot be read counts as none. Every function
blocks on the disk: call it from one thread, in order.
"""

import contextlib
import hashlib
import os
from pathlib import Path

import msgspec

from contracts.distribution import Position
from contracts.policies import PolicySet
from contracts.types import Open

_FORMAT = 1
_file_bytes_max = 64 * 1024 * 1024
"""Four times the largest frame that could have carried a set; a longer file is not ours."""
_candidate_s_max = 60.0


class LastGood(Open, frozen=True, kw_only=True):
    """A policy set and its place in the commit log."""

    position: Position
    policies: PolicySet


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    format: int
    sha256: bytes
    payload: bytes


class LastGoodFile:
    """`.mortise/policy/<service>[.<index>].msgpack`, and the candidate beside it.

    The candidate's name holds the instance, so that a predecessor and its successor, which share
    the last-good file, never write into the same candidate.
    """

    def __init__(self, folder: Path, stem: str, instance: str) -> None:
        self.path = folder / f"{stem}.msgpack"
        self._candidate = folder / f"{instance}.candidate"

    def read(self) -> tuple[LastGood | None, str]:
        """The stored set, or None and why there is none ("absent" at the first start)."""
        try:
            with self.path.open("rb") as file:
                content = file.read(_file_bytes_max + 1)
        except FileNotFoundError:
            return None, "absent"
        except OSError as error:
            return None, f"{self.path.name} cannot be read: {error.strerror}"
        if len(content) > _file_bytes_max:
            return None, f"{self.path.name} is longer than {_file_bytes_max} bytes"
        try:
            envelope = msgspec.msgpack.decode(content, type=_Envelope)
            if envelope.format != _FORMAT:
                return None, f"{self.path.name} has format {envelope.format}, known is {_FORMAT}"
            if hashlib.sha256(envelope.payload).digest() != envelope.sha256:
                return None, f"{self.path.name} is damaged: its sha256 does not fit"
            return msgspec.msgpack.decode(envelope.payload, type=LastGood), ""
        except (msgspec.MsgspecError, RecursionError) as error:
            return None, f"{self.path.name} is damaged: {error}"

    def write_candidate(self, stored: LastGood) -> None:
        """Put the set on the disk (fsynced) without touching the last good one."""
        payload = msgspec.msgpack.encode(stored)
        envelope = _Envelope(_FORMAT, hashlib.sha256(payload).digest(), payload)
        self._candidate.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(
            self._candidate, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.msgpack.encode(envelope))
            file.flush()
            os.fsync(file.fileno())

    def adopt_candidate(self) -> None:
        """Make the candidate the last good set; on disk when this returns."""
        self._candidate.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def sweep(self, now_s: float) -> None:
        """Remove candidates that dead processes left; a living one adopts its own in seconds.
        `now_s` is wall time."""
        for path in self.path.parent.glob("*.candidate"):
            with contextlib.suppress(FileNotFoundError):
                if now_s - path.stat().st_mtime > _candidate_s_max:
                    path.unlink()
