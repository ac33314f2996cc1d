"""The history of the SLAs on the disk: one file, replaced whole. Every function blocks on it."""

import os
from pathlib import Path

import msgspec

from shared import logs
from supervisor.sla_windows import Kept

log = logs.get("supervisor.sla_file")
file_bytes_max = 128 * 1024 * 1024
"""64 models with all 186 counts of 25 bytes in each of 279 buckets are 80 MiB; a longer file is not
ours. Three models have half a MiB."""
_FORMAT = 1


class _File(msgspec.Struct, frozen=True):
    format: int
    kept: Kept


def encode(kept: Kept) -> bytes:
    """The file's content."""
    return msgspec.msgpack.encode(_File(_FORMAT, kept))


def read(path: Path) -> Kept | None:
    """The history in the file; one that cannot be read counts as none, and the log says so."""
    kept, reason = _decoded(path)
    if reason:
        log.warning("sla_unreadable", path=str(path), reason=reason, remedy="it is begun anew")
    return kept


def _decoded(path: Path) -> tuple[Kept | None, str]:
    """What the file holds, or why that is not known; neither for an absent one."""
    try:
        with path.open("rb") as file:
            content = file.read(file_bytes_max + 1)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, str(error)
    if len(content) > file_bytes_max:
        return None, f"it is longer than file_bytes_max, {file_bytes_max} bytes"
    try:
        found = msgspec.msgpack.decode(content, type=_File)
    except msgspec.MsgspecError as error:
        return None, str(error)
    if found.format != _FORMAT:
        return None, f"it has format {found.format}, known is {_FORMAT}"
    return found.kept, ""


def replace(path: Path, content: bytes) -> None:
    """Whole or not at all, also when the machine stops. Raises OSError."""
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
