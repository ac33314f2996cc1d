"""Brings a version into service: deploy, wait until it is ready where it must be, then route.

A deployment that fails, takes too long or loses its caller is taken back; what served before
serves on. The steps are commits like any other.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from contracts.control import PromoteStep
from contracts.errors import MeshError
from contracts.policies import DeploymentPolicy, PolicySet
from contracts.types import UNSET
from services.control_plane import versions
from services.control_plane.changes import Author, Change, Committed
from services.control_plane.committer import Committer
from services.control_plane.distributor import Distributor
from services.control_plane.loading import Standing, Wanted, standing
from shared import logs
from shared.clock import Clock
from shared.packs import read_manifest

log = logs.get("services.control_plane.promotion")

Tell = Callable[[PromoteStep], object]
_attempts_max = 5
_retry_s = 0.5
"""A commit that an absent instance held up is tried again: its successor comes within 2 s."""
take_back_s = 1.0
"""Kept of the caller's deadline for taking a deployment back."""


class Promotion:
    """Deploys and routes versions; on the loop's thread."""

    def __init__(
        self, committer: Committer, distributor: Distributor, models_dir: Path, clock: Clock
    ) -> None:
        self._committer = committer
        self._distributor = distributor
        self._models_dir = models_dir
        self._clock = clock
        self._taking_back: set[asyncio.Task[None]] = set()

    async def promote(
        self, model: str, version: str, author: Author, deadline_s: float, tell: Tell
    ) -> Committed:
        """Deploy, wait, route. Raises MODEL_UNKNOWN, MODEL_NOT_READY, and what a commit raises."""
        await self.deploy(model, version, author, deadline_s, tell)
        tell(PromoteStep(step="routing", detail=f"{model} {version}"))
        author = author.because(f"route {model} to {version}")

        def route(policies: PolicySet) -> Change | None:
            policy = versions.route_to(policies, model, version)
            return None if policy is None else Change([policy])

        committed = await self._patiently(lambda: self._committer.commit(route, author))
        tell(PromoteStep(step="active", detail=f"policy version {committed.version}"))
        return committed

    async def deploy(
        self,
        model: str,
        version: str,
        author: Author,
        deadline_s: float,
        tell: Tell = lambda _step: None,
    ) -> None:
        """Have a published version ready on every instance that must have it."""
        author = author.because(f"deploy {model} {version}")
        before: list[DeploymentPolicy | None] = []
        ours: list[DeploymentPolicy] = []

        def make(policies: PolicySet) -> Change | None:
            versions.published_digest(policies, model, version)
            policy = versions.deploy(policies, model, version)
            before[:] = [versions.deployment_of(policies, model)]
            ours[:] = [] if policy is None else [policy]
            return None if policy is None else Change([policy])

        try:
            committed = await self._patiently(lambda: self._committer.commit(make, author))
            tell(PromoteStep(step="deploying", detail=f"policy version {committed.version}"))
            since = committed.version if ours else 0
            await self._wait_ready(model, version, since, deadline_s, tell)
        except (MeshError, asyncio.CancelledError) as error:
            if ours:
                task = asyncio.create_task(self._take_back(ours[0], before[0], author, str(error)))
                self._taking_back.add(task)
                task.add_done_callback(self._taking_back.discard)
                if isinstance(error, MeshError):
                    await asyncio.shield(task)
            raise

    def is_deployed(self, model: str, version: str) -> bool:
        """Whether runtimes are to hold this version now."""
        head = self._distributor.head
        return head is not None and versions.deployed_row(head.policies, model, version) is not None

    async def close(self) -> None:
        """Let deployments be taken back to the end."""
        if self._taking_back:
            await asyncio.wait(self._taking_back)

    async def _wait_ready(
        self, model: str, version: str, sequence: int, deadline_s: float, tell: Tell
    ) -> None:
        head = self._distributor.head
        assert head is not None, "a commit went before"
        digest = versions.published_digest(head.policies, model, version)
        row = versions.deployed_row(head.policies, model, version)
        if row is None:
            raise MeshError("MODEL_NOT_READY", f"{model} {version} was undeployed meanwhile")
        manifest = await asyncio.to_thread(read_manifest, self._models_dir, digest)
        wanted = Wanted(model, row, digest, manifest.contract, sequence)
        told: dict[str, str] = {}
        while True:
            now_s = self._clock.monotonic()
            state = standing(
                wanted,
                self._distributor.instances.serving("model_runtime", now_s),
                self._distributor.instances.serving("data_fabric", now_s),
            )
            _tell_changes(state, told, tell)
            if state.failed:
                raise MeshError(
                    "MODEL_NOT_READY",
                    f"{model} {version} cannot be loaded, what served before serves on: "
                    + _text(state.failed),
                )
            if state.is_ready:
                return
            left_s = deadline_s - take_back_s - now_s
            if left_s <= 0:
                raise MeshError(
                    "MODEL_NOT_READY",
                    f"{model} {version} was not ready in time, what served before serves on: "
                    + _text(state.waiting),
                )
            await self._distributor.wait_changed(left_s)

    async def _take_back(
        self,
        ours: DeploymentPolicy,
        before: DeploymentPolicy | None,
        author: Author,
        reason: str,
    ) -> None:
        """Commit the deployment that stood before, unless somebody changed it since."""

        def make(policies: PolicySet) -> Change | None:
            if versions.deployment_of(policies, ours.name) != ours:
                return None
            if before is None:
                return Change([], [("deployment", ours.name)])
            return Change([before])

        because = replace(author, reason=f"taken back: {reason}")
        try:
            await self._patiently(lambda: self._committer.commit(make, because))
        except MeshError as error:
            log.warning("deployment_not_taken_back", model_name=ours.name, reason=str(error))

    async def _patiently(self, commit: Callable[[], Awaitable[Committed]]) -> Committed:
        """Commit, and again while an instance is between two lives."""
        for _attempt in range(_attempts_max - 1):
            try:
                return await commit()
            except MeshError as error:
                if error.name != "POLICY_REJECTED" or error.retry_after_ms is None:
                    raise
                await asyncio.sleep(_retry_s)
        return await commit()


def _tell_changes(state: Standing, told: dict[str, str], tell: Tell) -> None:
    """One step for each instance whose standing changed."""
    now = {
        **dict.fromkeys(state.ready, ("ready", "")),
        **{name: ("loading", detail) for name, detail in state.waiting.items()},
        **{name: ("loading", detail) for name, detail in state.failed.items()},
    }
    for name, (step, detail) in now.items():
        text = f"{step} {detail}"
        if told.get(name) != text:
            told[name] = text
            if step == "ready":
                tell(PromoteStep(step="ready", instance=name))
            else:
                tell(PromoteStep(step="loading", instance=name, detail=detail or UNSET))


def _text(reasons: dict[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in sorted(reasons.items()))
