"""The orchestrator's process: builds the pipeline, follows the policies, tends the spool."""

import asyncio
import contextlib
import gc
from collections.abc import Coroutine, Mapping
from typing import Any

from contracts.errors import MeshError
from contracts.inference import Models
from contracts.policies import PolicySet
from contracts.service import Metric
from contracts.types import Scalar
from services.orchestrator.breaker_file import BreakerFile
from services.orchestrator.catalogue import catalogue
from services.orchestrator.config import young_objects_max
from services.orchestrator.pipeline import Pipeline
from services.orchestrator.plans import Plans
from services.orchestrator.quota_file import QuotaFile
from services.orchestrator.routing import RouteTable, unsupported
from services.orchestrator.shipping import Shipper
from services.orchestrator.spool import Spool
from services.orchestrator.spool_files import SpoolFiles
from shared import logs
from shared.channel import Pressure
from shared.home import socket_path
from shared.lifecycle import Environment, Readiness, Service
from shared.policy_follower import PolicyFollower, ReportParts
from shared.rpc.call import Call, Handler
from shared.rpc.client import RpcClient

log = logs.get("services.orchestrator")
last_shipment_s_max = 1.0
"""What a drain gives to receipts that the control plane has not got; the rest stays spooled."""


class Orchestrator(Service):
    """`infer` and `models`."""

    name = "orchestrator"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._spool_changed = asyncio.Event()
        self._spool = Spool(self._spool_changed.set)
        self._files = SpoolFiles(
            self._spool, environment.home / ".mortise" / "spool", environment.instance
        )
        self._plans = Plans(environment.home / "models")
        run_dir = environment.run_dir
        self.pipeline = Pipeline(
            instance=environment.instance,
            infra=environment.infra,
            clock=environment.clock,
            plan_of=self._plans.of,
            spool=self._spool,
            poll_s=environment.config.poll_us / 1e6,
            fabric=socket_path(run_dir, "data_fabric"),
            runtimes=[
                socket_path(run_dir, "model_runtime", index)
                for index in range(environment.replicas_max)
            ],
        )
        self._quotas = QuotaFile(
            environment.home / ".mortise" / "quotas.msgpack", self.pipeline.allowances
        )
        self._breakers = BreakerFile(
            environment.home / ".mortise" / "breakers.msgpack", self.pipeline.breakers
        )
        self._follower = PolicyFollower(
            environment,
            check=self._check,
            activate=self.pipeline.activate,
            report=lambda: ReportParts(ready=self.readiness().ready),
        )
        self._control_plane = RpcClient(
            str(socket_path(run_dir, "control_plane")),
            "control_plane",
            clock=environment.clock,
            on_lost=self._hung_up,
        )
        self._shipper = Shipper(self._spool, self._control_plane, self._spool_changed)
        self._tasks: list[asyncio.Task[None]] = []

    def handlers(self) -> Mapping[str, Handler]:
        """What the socket answers."""
        return {"infer": self.pipeline.infer, "models": self._models}

    async def start(self) -> None:
        """Put the last good policies in force, begin to dial everybody, have a file for receipts
        (a standby too: its own, which nobody else touches)."""
        gc.set_threshold(young_objects_max)
        await self._files.prepare()
        await self._follower.start()
        await self.pipeline.features.start()
        await self.pipeline.dispatcher.replicas.start()
        with contextlib.suppress(MeshError):
            await self._control_plane.connect(0.0)

    async def promoted(self) -> None:
        """Own the spool. Only a file to write is waited for; what dead processes left is taken
        over beside serving."""
        await self._follower.promoted()
        self._quotas.read()
        self._breakers.read()
        await self._files.prepare()
        self._spawn(self._quotas.run())
        self._spawn(self._tend_spool())
        self._spawn(self._shipper.run())

    async def _tend_spool(self) -> None:
        """Ship once the receipts of the dead are found: they are the oldest."""
        await self._files.tend()
        self._shipper.begins.set()
        await self._files.run(self._spool_changed)

    async def drain(self) -> None:
        """Ship what can be shipped now, hang up, leave the rest in the spool."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._control_plane.connected:
            with contextlib.suppress(MeshError, TimeoutError):
                async with asyncio.timeout(last_shipment_s_max):
                    while await self._shipper.ship():
                        pass
        await self._follower.close()
        await self.pipeline.dispatcher.replicas.close()
        await self.pipeline.features.close()
        await self._control_plane.close()
        self._files.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(_surface)
        self._tasks.append(task)

    def _hung_up(self) -> None:
        self._shipper.lost()

    def _models(self, _call: Call) -> Models:
        return catalogue(self.pipeline.table, self._plans.of, self.pipeline.dispatcher.replicas)

    def _check(self, policies: PolicySet) -> str | None:
        """Why these policies cannot be in force here."""
        for policy in policies.policies:
            reason = unsupported(policy)
            if reason is not None:
                return reason
        faults = RouteTable(policies, self._plans.of).faults
        return "; ".join(faults) or None

    def pressed(self, pressure: Pressure) -> None:
        """See `Service`: shed the classes that it names, if any."""
        gate, now_s = self.pipeline.memory_gate, self.environment.clock.monotonic()
        if bool(pressure.classes) is not gate.is_shut:
            word = "memory_shedding" if pressure.classes else "memory_shedding_over"
            log.warning(word, classes=pressure.classes, reason=pressure.reason)
        gate.tell(pressure.classes, pressure.reason, now_s)

    # Seeing it.

    def readiness(self) -> Readiness:
        """Ready: policies in force, a receipt has room, and not every routed version is missing.
        Degraded: something that a route needs is missing, or receipts do not get away."""
        table, replicas = self.pipeline.table, self.pipeline.dispatcher.replicas
        routed = table.routed()
        missing = [plan for plan in routed if plan.key not in replicas.ready]
        reasons = [f"{plan.name} {plan.version} is ready on no replica" for plan in missing]
        reasons += table.faults
        reasons += self.pipeline.breakers.reasons()
        reasons += self.pipeline.memory_gate.reasons(self.environment.clock.monotonic())
        if any(plan.view for plan in routed) and not self.pipeline.features.is_there:
            reasons.append("the data fabric is away")
        if self._shipper.fault:
            reasons.append(f"{self._shipper.fault}; receipts stay in the spool")
        is_degraded = bool(reasons)
        blocking = []
        if self._follower.position is None:
            blocking.append("no policies yet")
        if self._follower.fenced:
            blocking.append("a newer policy version has not arrived")
        if not self._spool.has_room:
            blocking.append("the spool has no room for receipts")
        has_route = not routed or len(missing) < len(routed)
        return Readiness(
            ready=has_route and not blocking,
            degraded=is_degraded,
            reasons=blocking + reasons,
            policy_version=table.version,
        )

    def statistics(self) -> dict[str, Scalar]:
        """The pipeline's, the spool's and the follower's."""
        spool, shipper = self._spool, self._shipper
        return {
            **self.pipeline.statistics(),
            **self._follower.statistics(),
            "spool_records": spool.unacknowledged(),
            "spool_bytes": spool.size,
            "receipts_shipped": shipper.shipped,
            "shipments_failed": shipper.failures,
        }

    def metrics(self) -> list[Metric]:
        """Prometheus families."""
        return self.pipeline.observed.collect(
            ai_requests_in_flight=self.pipeline.works.count,
            ai_queue_rows=self.pipeline.dispatcher.queue.rows,
            ai_breakers_out=len(self.pipeline.breakers.shut),
            ai_spool_records=self._spool.unacknowledged(),
            ai_spool_bytes=self._spool.size,
        )


def _surface(task: asyncio.Task[None]) -> None:
    """Hand a defect in one of our tasks to the loop's exception handler instead of losing it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
