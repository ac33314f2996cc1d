"""Makes, adopts and removes the spool's files, in a thread of its own.

A file belongs to the process that holds its lock; when that one is gone, whoever serves next takes
the file over.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from services.orchestrator.segment import Segment, SegmentFault
from services.orchestrator.spool import Spool
from shared import logs

log = logs.get("services.orchestrator.spool")

SUFFIX = ".spool"
tend_s = 1.0
"""Between two looks at the directory, and after a file could not be made."""
adopted_records_max = 256
"""Counted in one go: about half a millisecond for which the thread keeps the loop waiting."""
T = TypeVar("T")


class SpoolFiles:
    """Tends a spool in `directory`; its files are named after the instance."""

    def __init__(self, spool: Spool, directory: Path, instance: str) -> None:
        self._spool = spool
        self._directory = directory
        self._instance = instance
        self._made = 0
        self._held: set[str] = set()
        """Names that are in the spool, and foreign ones that were reported once."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spool")

    async def prepare(self) -> None:
        """Have a file to write; nothing else, since clients wait. A standby does it beforehand."""
        if self._spool.current is None:
            await self._make()

    async def run(self, changed: asyncio.Event) -> None:
        """Tend until cancelled: at once when `changed` is set, else each `tend_s`."""
        while True:
            await self.tend()
            try:
                async with asyncio.timeout(tend_s):
                    await changed.wait()
            except TimeoutError:
                continue
            changed.clear()

    async def tend(self) -> None:
        """Have a file to write and a spare, take over what dead processes left, remove what is
        acknowledged. Never fails: without a file the spool refuses until there is one."""
        while self._spool.wants_file and await self._make():
            pass
        for path in await self._in_thread(lambda: sorted(self._directory.glob(f"*{SUFFIX}"))):
            if path.name not in self._held:
                await self._adopt(path)
        for segment in self._spool.drop_acknowledged():
            await self._in_thread(segment.delete)
            self._held.discard(segment.path.name)

    def close(self) -> None:
        """Let go of every file; an empty one is removed."""
        for segment in self._spool.files():
            if segment.is_acknowledged:
                segment.delete()
            else:
                segment.close()
        self._thread.shutdown(wait=False)

    async def _make(self) -> bool:
        self._made += 1
        path = self._directory / f"{self._instance}-{self._made}{SUFFIX}"
        size = self._spool.file_bytes
        try:
            segment = await self._in_thread(lambda: Segment.create(path, size))
        except OSError as error:
            self._spool.fault = f"{path.name}, {size} bytes: {error.strerror}"
            log.warning("spool_file_not_made", reason=self._spool.fault)
            return False
        self._held.add(path.name)
        self._spool.add(segment)
        return True

    async def _adopt(self, path: Path) -> None:
        """Beside serving: the loop gets its turn between any two goes."""
        try:
            segment = await self._in_thread(lambda: Segment.claim(path))
        except FileNotFoundError:
            return
        except (SegmentFault, OSError) as error:
            log.warning("spool_file_unusable", file=path.name, reason=str(error))
            self._held.add(path.name)
            return
        if segment is None:
            return
        try:
            while not await self._in_thread(lambda: segment.recover(adopted_records_max)):
                pass
        except asyncio.CancelledError:
            self._thread.submit(segment.close)
            raise
        self._held.add(path.name)
        self._spool.adopt(segment)
        left = segment.records - segment.acknowledged
        log.info("spool_adopted", file=path.name, records=left, torn=segment.is_torn)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
