"""Keeps the held views equal to what the deployments name, the home's files say and the sources
contain.

One task; loads run one after another on the loader's thread, beside serving. A view that is loaded
anew flips in on the loop when it is ready; if that fails, the old one goes on and the reason is
told.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from contracts.errors import MeshError
from contracts.policies import DeploymentPolicy, ModelPolicy, PolicySet
from contracts.types import UNSET
from services.data_fabric.config import source_poll_s, view_bytes_max
from services.data_fabric.engine import EngineFailed
from services.data_fabric.header import read_header
from services.data_fabric.loading import LoadedView, Loader
from services.data_fabric.refusal import SourceRefused, ViewRefused
from services.data_fabric.serving import ServedView
from services.data_fabric.sql import text_digest
from services.data_fabric.views import Held, Views, Wanted
from shared import logs
from shared.packs import read_manifest, read_view

log = logs.get("services.data_fabric")


def deployed_packs(policies: PolicySet) -> list[str]:
    """The digests of every deployed version's pack, in order of name and version."""
    published = {
        (policy.name, version.version): version.digest
        for policy in policies.policies
        if isinstance(policy, ModelPolicy)
        for version in policy.spec.versions
    }
    deployed = [
        (policy.name, version.version)
        for policy in policies.policies
        if isinstance(policy, DeploymentPolicy)
        for version in policy.spec.versions
    ]
    return list(dict.fromkeys(published[key] for key in deployed if key in published))


def read_wanted(home: Path, packs: list[str]) -> tuple[list[Wanted], list[str]]:
    """The views of these packs, then those of the home's files; and what could not be read."""
    wanted, problems = [], []
    for digest in packs:
        try:
            view = read_manifest(home / "models", digest).contract.view
            if view is not UNSET:
                text = read_view(home / "models", digest)
                wanted.append(Wanted(view.name, view.version, view.digest, text, True))
        except (MeshError, UnicodeDecodeError) as error:
            problems.append(f"pack {digest}: {error}")
    for path in sorted((home / "features").glob("*.sql")):
        try:
            with path.open("rb") as file:
                text = file.read(view_bytes_max + 1).decode()
            header = read_header(text)
            wanted.append(Wanted(header.name, header.version, text_digest(text), text, False))
        except (OSError, UnicodeDecodeError, ViewRefused) as error:
            problems.append(f"features/{path.name}: {error}")
    return wanted, problems


class Reconciler:
    """Belongs to the loop's thread. `on_change` is called after each load that ended;
    `is_informed` once it is known which views the deployments name; `problems` is what could not
    be read."""

    def __init__(
        self, views: Views, loader: Loader, home: Path, on_change: Callable[[], None]
    ) -> None:
        self.settled = asyncio.Event()
        self.is_informed = False
        self.problems: list[str] = []
        self._views = views
        self._loader = loader
        self._home = home
        self._on_change = on_change
        self._packs: list[str] = []
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        self._task: asyncio.Task[None] | None = None

    def activate(self, policies: PolicySet) -> None:
        """Make these deployments the goal."""
        packs = deployed_packs(policies)
        self.is_informed = self.is_informed and packs == self._packs
        self._packs = packs
        self._views.forget_failures()
        self.settled.clear()
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(_surface)

    async def close(self) -> None:
        """Stop; what is loading is not waited for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)
        for held in self._views.held.values():
            if held.served is not None:
                held.served.close()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            await self.reconcile()
            if not self._wake.is_set():
                self.settled.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(source_poll_s):
                    await self._wake.wait()

    async def reconcile(self) -> None:
        """Once: take up what the deployments, the files and the sources say now."""
        wanted, problems = await self._aside(read_wanted, self._home, self._packs)
        if problems != self.problems:
            self.problems = problems
            log.warning("views_unreadable", reasons=problems)
        for held in self._views.want(wanted):
            if held.served is not None:
                held.served.close()
        self.is_informed = True
        now = await self._aside(self._loader.signature)
        for held in self._views.to_load(now, lambda loaded: loaded.is_changed(now)):
            held.tried = now
            await self._load(held)

    async def _aside(self, work: Callable[..., Any], *arguments: object) -> Any:
        """Run on the loader's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def _load(self, held: Held) -> None:
        wanted = held.wanted
        record = log.bind(view=wanted.name, view_version=wanted.version, digest=wanted.digest)
        try:
            loaded = await self._aside(self._loader.load, wanted.text)
            _check_name(loaded, wanted)
        except (ViewRefused, SourceRefused, EngineFailed) as error:
            held.state = "failed" if held.served is None else "ready"
            held.reason = str(error)
            record.error("view_failed", reason=held.reason)
        else:
            before, held.served = held.served, ServedView(loaded)
            held.state, held.reason = "ready", ""
            if before is not None:
                before.close()
            record.info(
                "view_ready", path=loaded.path, reason=loaded.reason, data=loaded.lineage.data,
                **{f"{step}_s": round(s, 3) for step, s in loaded.durations_s.items()},
            )  # fmt: skip
        self._on_change()


def _check_name(loaded: LoadedView, wanted: Wanted) -> None:
    found = (loaded.header.name, loaded.header.version)
    if found != (wanted.name, wanted.version):
        names = f"{wanted.name} {wanted.version}, its text {found[0]} {found[1]}"
        raise ViewRefused.of(f"the pack calls the view {names}")


def _surface(task: asyncio.Task[None]) -> None:
    """Hand a defect in the task to the loop's exception handler instead of losing it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
