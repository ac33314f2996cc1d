"""Brings a version into service: deploy, wait until it is ready where it must be, then route.

A deployment that fails, takes too long or loses its caller is taken back; what served before
serves on. The steps are commits like any other.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.control import Diverting, PromoteStep
from contracts.errors import MeshError
from contracts.inference import Models
from contracts.policies import DeploymentPolicy, PolicySet
from contracts.types import UNSET, Empty, UnsetType
from services.control_plane import versions
from services.control_plane.changes import Author, Change, Committed
from services.control_plane.committer import Committer
from services.control_plane.distributor import Distributor
from services.control_plane.loading import Standing, Wanted, standing
from shared import logs
from shared.clock import Clock
from shared.packs import read_manifest
from shared.rpc.client import RpcClient

log = logs.get("services.control_plane.promotion")

Tell = Callable[[PromoteStep], object]
_attempts_max = 5
_retry_s = 0.5
"""A commit that an absent instance held up is tried again: its successor comes within 2 s."""
_look_s = 0.05
_look_s_max = 1.0
take_back_s = 1.0
"""Kept of the caller's deadline for taking a deployment back."""


@dataclass(slots=True)
class _Deployed:
    """The deployment that a promotion made (None: there was nothing to do), and the one before."""

    ours: DeploymentPolicy | None = None
    before: DeploymentPolicy | None = None


@dataclass(frozen=True, slots=True)
class Routed:
    """What a promotion came to: its commit, where the route led before (UNSET: nowhere else), and
    which policies send requests elsewhere all the same."""

    committed: Committed
    from_version: str | UnsetType
    diverted_by: list[Diverting]


class Promotion:
    """Deploys and routes versions; on the loop's thread."""

    def __init__(
        self,
        committer: Committer,
        distributor: Distributor,
        orchestrator: RpcClient,
        models_dir: Path,
        clock: Clock,
    ) -> None:
        self._committer = committer
        self._distributor = distributor
        self._orchestrator = orchestrator
        self._models_dir = models_dir
        self._clock = clock
        self._taking_back: set[asyncio.Task[None]] = set()

    async def promote(
        self, model: str, version: str, author: Author, deadline_s: float, tell: Tell
    ) -> "Routed":
        """Deploy, wait, route. Raises MODEL_UNKNOWN, MODEL_NOT_READY, and what a commit raises."""
        diverted_by: list[Diverting] = []
        routed_before: list[str] = []

        def route(policies: PolicySet) -> Change | None:
            diverted_by[:] = versions.diverting(policies, model, version)
            before = versions.route_of(policies, model)
            policy = versions.route_to(policies, model, version)
            if policy is None:
                return None
            routed_before[:] = [] if before is None else [before.spec.default]
            return Change([policy])

        async with self._taken_back_on_failure(author) as deployed:
            await self._deploy(deployed, model, version, author, deadline_s, tell)
            tell(PromoteStep(step="routing", detail=f"{model} {version}"))
            routing = author.because(f"route {model} to {version}")
            committed = await self._patiently(lambda: self._committer.commit(route, routing))
        tell(PromoteStep(step="active", detail=f"policy version {committed.version}"))
        return Routed(committed, routed_before[0] if routed_before else UNSET, diverted_by)

    async def deploy(self, model: str, version: str, author: Author, deadline_s: float) -> None:
        """Have a published version ready on every instance that must have it."""
        async with self._taken_back_on_failure(author) as deployed:
            await self._deploy(deployed, model, version, author, deadline_s, lambda _step: None)

    def is_deployed(self, model: str, version: str) -> bool:
        """Whether runtimes are to hold this version now."""
        head = self._distributor.head
        return head is not None and versions.deployed_row(head.policies, model, version) is not None

    async def close(self) -> None:
        """Let deployments be taken back to the end."""
        if self._taking_back:
            await asyncio.wait(self._taking_back)

    async def _deploy(
        self,
        deployed: "_Deployed",
        model: str,
        version: str,
        author: Author,
        deadline_s: float,
        tell: Tell,
    ) -> None:
        def make(policies: PolicySet) -> Change | None:
            versions.published_digest(policies, model, version)
            deployed.before = versions.deployment_of(policies, model)
            deployed.ours = versions.deploy(policies, model, version)
            return None if deployed.ours is None else Change([deployed.ours])

        deploying = author.because(f"deploy {model} {version}")
        committed = await self._patiently(lambda: self._committer.commit(make, deploying))
        tell(PromoteStep(step="deploying", detail=f"policy version {committed.version}"))
        since = 0 if deployed.ours is None else committed.version
        await self._wait_ready(model, version, since, deadline_s, tell)

    @asynccontextmanager
    async def _taken_back_on_failure(self, author: Author) -> AsyncIterator["_Deployed"]:
        """Whatever fails inside, the deployment that was made there is taken back: before the
        caller hears of it, or behind the back of one that left."""
        deployed = _Deployed()
        try:
            yield deployed
        except (MeshError, asyncio.CancelledError) as error:
            if deployed.ours is not None:
                task = asyncio.create_task(
                    self._take_back(deployed.ours, deployed.before, author, str(error))
                )
                self._taking_back.add(task)
                task.add_done_callback(self._taking_back.discard)
                if isinstance(error, MeshError):
                    await asyncio.shield(task)
            raise

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
            if state.is_ready and await self._is_seen(model, version):
                return
            left_s = deadline_s - take_back_s - now_s
            if left_s <= 0:
                raise MeshError(
                    "MODEL_NOT_READY",
                    f"{model} {version} was not ready in time, what served before serves on: "
                    + (_text(state.waiting) or "the orchestrator does not see it yet"),
                )
            await self._distributor.wait_changed(min(left_s, _look_s) if state.is_ready else left_s)

    async def _is_seen(self, model: str, version: str) -> bool:
        """Whether the orchestrator knows that the version is ready: it asks the runtimes itself,
        and a route that is ahead of its knowledge would refuse requests. One that is away routes
        nothing."""
        if not self._orchestrator.connected:
            return True
        try:
            answer: Models = await self._orchestrator.call("models", Empty(), timeout_s=_look_s_max)
        except MeshError as error:
            log.warning("orchestrator_silent", reason=error.message)
            return True
        return any(
            (row.name, row.version, row.state) == (model, version, "ready") for row in answer.models
        )

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
