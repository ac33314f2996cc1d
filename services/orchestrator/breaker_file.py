"""Which versions are out, kept in a file, so that a restart does not send them requests again.

Written at each transition, which is rare; read once, when this process becomes the active one.
"""

import os
from pathlib import Path

import msgspec

from services.orchestrator.breakers import Breakers, Out
from shared import logs

log = logs.get("services.orchestrator.breakers")

_decode = msgspec.msgpack.Decoder(list[Out]).decode


class BreakerFile:
    """Keeps what `breakers` know in `path`. Only the active process has anything to write."""

    def __init__(self, path: Path, breakers: Breakers) -> None:
        self._path = path
        self._breakers = breakers

    def read(self) -> None:
        """Take over from the process before, and write from now on. A file that cannot be read
        counts as none, and says so in the log: what fails is learnt again."""
        self._breakers.on_change = self._write
        try:
            found = _decode(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("breaker_file_unreadable", path=str(self._path), reason=str(error))
            return
        self._breakers.restore(found)

    def _write(self) -> None:
        """Replace the file whole."""
        fresh = self._path.with_suffix(".new")
        try:
            fresh.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(msgspec.msgpack.encode(self._breakers.out()))
            os.replace(fresh, self._path)
        except OSError as error:
            log.warning("breaker_file_unwritable", path=str(self._path), reason=str(error))
