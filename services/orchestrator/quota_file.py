"""What was used of the daily quotas, kept in a file, so that a restart does not hand out a day's
quota twice. Up to `quota_keep_s` of use is lost when a process dies.
"""

import asyncio
import os
from pathlib import Path

import msgspec

from services.orchestrator.allowances import Allowances
from services.orchestrator.config import quota_keep_s
from shared import logs

log = logs.get("services.orchestrator.quota_file")


class Used(msgspec.Struct, frozen=True):
    """The file: rows by ("model" or "tenant", name) of one day since 1970 (UTC)."""

    day: int
    rows: list[tuple[str, str, int]]


class QuotaFile:
    """Keeps `allowances` in `path`. Only the active process may write."""

    def __init__(self, path: Path, allowances: Allowances) -> None:
        self._path = path
        self._allowances = allowances

    def read(self) -> None:
        """Count what earlier processes counted. A file that cannot be read counts as none, and
        says so in the log."""
        try:
            found = msgspec.msgpack.decode(self._path.read_bytes(), type=Used)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("quota_file_unreadable", path=str(self._path), reason=str(error))
            return
        used = {(kind, name): rows for kind, name, rows in found.rows}
        self._allowances.restore(found.day, used)

    def write(self) -> None:
        """Replace the file whole."""
        allowances = self._allowances
        rows = [(kind, name, count) for (kind, name), count in allowances.used.items()]
        fresh = self._path.with_suffix(".new")
        fresh.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(msgspec.msgpack.encode(Used(allowances.day, rows)))
        os.replace(fresh, self._path)
        allowances.is_changed = False

    async def run(self) -> None:
        """Write what changed, every `quota_keep_s`."""
        while True:
            await asyncio.sleep(quota_keep_s)
            if self._allowances.is_changed:
                try:
                    self.write()
                except OSError as error:
                    log.warning("quota_file_unwritable", path=str(self._path), reason=str(error))
