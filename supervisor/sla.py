"""Keeps the rolling windows of the SLAs: asks the orchestrator every ten seconds what it counted,
adds what came on top, and writes the history once a minute. Costs a request nothing.

The supervisor keeps them because it outlives every service, and its children do not outlive it: a
process that counts is never there before or after who reads it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from contracts.errors import MeshError
from contracts.policies import PolicySet, RoutePolicy
from contracts.service import Metrics
from contracts.types import UNSET, Open
from shared import logs
from shared.clock import Clock
from shared.packs import read_manifest
from supervisor import sla_file
from supervisor.in_force import InForce
from supervisor.sla_counters import Differences
from supervisor.sla_verdicts import Row, judge, late_of, promised, routed_digest
from supervisor.sla_windows import MESH, WINDOWS, Counts, Kept, Window

log = logs.get("supervisor.sla")
look_s = 10.0
write_s = 60.0
"""A supervisor that is killed loses so much of the history, and up to a look."""
close_s_max = 5.0
Ask = Callable[[], Awaitable[Metrics | None]]


class Report(Open, frozen=True, kw_only=True):
    """Every model in every window that was asked for. `late` are the missed deadlines of the whole
    mesh by window, each under `stage hop`; `is_current` is false when the orchestrator did not
    answer, so that its latest requests are not in it."""

    policy_version: int
    is_current: bool
    rows: list[Row]
    late: dict[str, dict[str, int]]


class Sla:
    """The history of one mesh, in `path`. On the loop's thread, but for the file's bytes."""

    def __init__(
        self, ask: Ask, in_force: InForce, path: Path, models_dir: Path, clock: Clock
    ) -> None:
        self._ask, self._in_force, self._clock = ask, in_force, clock
        self._path, self._models_dir = path, models_dir
        self._kept = sla_file.read(path) or Kept(began_s=clock.wall())
        self._differences = Differences()
        self._turn = asyncio.Lock()
        self._written_s, self._is_changed = clock.monotonic(), False
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on."""
        self._task = asyncio.create_task(self._run(), name="sla")

    async def close(self) -> None:
        """Look once more, write, and stop."""
        self._stop.set()
        try:
            async with asyncio.timeout(close_s_max):
                if self._task is not None:
                    await asyncio.wait({self._task})
                await self.look()
                async with self._turn:
                    await self._write()
        except TimeoutError:
            log.warning("sla_unwritten", path=str(self._path), close_s_max=close_s_max)

    async def look(self) -> bool:
        """Add what the orchestrator counted since the last look; whether it answered."""
        async with self._turn:
            answer = await self._ask()
            found = {} if answer is None else self._differences.take(answer)
            if found:
                self._kept.add(self._clock.wall(), found)
                self._is_changed = True
            if self._clock.monotonic() - self._written_s >= write_s:
                await self._write()
        return answer is not None

    async def report(self, windows: Iterable[Window] = WINDOWS) -> Report:
        """As of now; what it says is on the disk when it returns."""
        is_current = await self.look()
        policies = self._in_force.policies
        now_s = self._clock.wall()
        sums = [(window, self._kept.over(window, now_s)) for window in windows]
        routed = {row.name for row in policies.policies if isinstance(row, RoutePolicy)}
        counted = {model for _, found in sums for model in found}
        models = sorted((routed | counted) - {MESH})
        p99_ms = await asyncio.to_thread(self._contracts, policies, models)
        rows = [
            self._row(policies, model, window, now_s, found.get(model, {}), p99_ms[model])
            for model in models
            for window, found in sums
        ]
        async with self._turn:
            await self._write()
        return Report(
            policy_version=policies.version,
            is_current=is_current,
            rows=rows,
            late={window.name: late_of(found.get(MESH, {})) for window, found in sums},
        )

    def _row(
        self,
        policies: PolicySet,
        model: str,
        window: Window,
        now_s: float,
        counts: Counts,
        p99_ms: float | None,
    ) -> Row:
        spec = promised(policies, model, p99_ms)
        return judge(model, window.name, self._kept.since_s(window, now_s), counts, spec)

    def _contracts(self, policies: PolicySet, models: list[str]) -> dict[str, float | None]:
        """The p99 in the contract of each model's pack; None: it has none, or cannot be read."""
        found: dict[str, float | None] = {}
        for model in models:
            digest = routed_digest(policies, model)
            found[model] = None if digest is None else self._contract(digest)
        return found

    def _contract(self, digest: str) -> float | None:
        try:
            p99_ms = read_manifest(self._models_dir, digest).contract.p99_ms
        except MeshError as error:
            log.warning("contract_unread", digest=digest, reason=error.message)
            return None
        return None if p99_ms is UNSET else float(p99_ms)

    async def _run(self) -> None:
        while not self._stop.is_set():
            try:
                await asyncio.wait_for(self._stop.wait(), look_s)
            except TimeoutError:
                await self.look()

    async def _write(self) -> None:
        """A disk that fails costs the history, never the mesh; it is tried again with the next."""
        self._written_s = self._clock.monotonic()
        if not self._is_changed:
            return
        content = sla_file.encode(self._kept)
        try:
            await asyncio.to_thread(sla_file.replace, self._path, content)
            self._is_changed = False
        except OSError as error:
            log.warning("sla_unwritten", path=str(self._path), reason=str(error))
