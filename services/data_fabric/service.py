"""The data fabric's process: its start, what it follows, its health. What it answers to requests
is in `answers`.
"""

import asyncio
import sys
from collections.abc import Mapping

from contracts.policies import PolicySet, RetentionSpec
from contracts.service import Metric
from contracts.types import Scalar
from services.data_fabric.answers import Answers
from services.data_fabric.config import start_wait_s, switch_interval_s
from services.data_fabric.counters import Counters
from services.data_fabric.loading import Loader
from services.data_fabric.quarantine import Quarantine
from services.data_fabric.reconciler import Reconciler
from services.data_fabric.views import Views
from shared import logs
from shared.environment import Environment
from shared.policy_follower import PolicyFollower, ReportParts
from shared.rpc.server import Handler
from shared.service import Readiness, Service

log = logs.get("services.data_fabric")


class DataFabric(Service):
    """Feature views over the home's sources."""

    name = "data_fabric"

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        fabric = environment.home / ".mortise" / "fabric"
        self._certificates = fabric / "certificates"
        self._views = Views()
        self._counters = Counters()
        self._quarantine = Quarantine(fabric / "quarantine", environment.clock)
        self._answers = Answers(self._views, self._counters, self._quarantine, environment.clock)

    def handlers(self) -> Mapping[str, Handler]:
        """See `Service`."""
        return self._answers.handlers()

    async def start(self) -> None:
        """Follow the policies and load the views that they and the home name, so that a fabric
        accepts when it can answer; bounded."""
        sys.setswitchinterval(switch_interval_s)
        environment = self.environment
        loader = Loader(
            environment.home,
            {name: source.path for name, source in environment.config.sources.items()},
            self._certificates,
            environment.clock,
        )
        self._follower = PolicyFollower(
            environment,
            check=lambda policies: None,
            activate=self._activate,
            report=lambda: ReportParts(self.readiness().ready, views=self._views.states()),
        )
        self._reconciler = Reconciler(self._views, loader, environment.home, self._on_load_ended)
        await self._follower.start()
        try:
            async with asyncio.timeout(start_wait_s):
                await self._reconciler.settled.wait()
        except TimeoutError:
            log.warning("start_without_all_views", reasons=self.readiness().reasons)

    async def promoted(self) -> None:
        """See `Service`."""
        await self._follower.promoted()

    async def drain(self) -> None:
        """See `Service`."""
        self._answers.close()
        await self._follower.close()
        await self._reconciler.close()
        self._quarantine.close()

    def readiness(self) -> Readiness:
        """Ready: a policy version is in force and every view that it deploys is loaded or has
        failed; a failed one degrades."""
        held = list(self._views.held.values())
        named = [(one, f"view {one.wanted.name} {one.wanted.version}") for one in held]
        failed = [f"{name}: {one.reason}" for one, name in named if one.reason]
        loading = [
            f"{name} is loading"
            for one, name in named
            if one.state == "loading" and one.wanted.is_deployed
        ]
        version, is_fenced = self._follower.current.version, self._follower.fenced
        reasons = [*self._reconciler.problems, *failed, *loading]
        if version == 0:
            reasons.append("no policy version yet")
        if is_fenced:
            reasons.append(f"policy version {version} is not the newest")
        return Readiness(
            ready=version > 0 and not loading and not is_fenced and self._reconciler.is_informed,
            degraded=bool(failed or self._reconciler.problems),
            reasons=reasons,
            policy_version=version,
        )

    def statistics(self) -> dict[str, Scalar]:
        """See `Service`."""
        return {
            **self._counters.statistics(),
            "slow_calls": self._answers.slow_calls,
            "quarantine_written": self._quarantine.written,
            "quarantine_dropped": self._quarantine.dropped,
            "views_ready": sum(held.state == "ready" for held in self._views.held.values()),
            **self._follower.statistics(),
        }

    def metrics(self) -> list[Metric]:
        """See `Service`."""
        return self._counters.metrics()

    def _activate(self, policies: PolicySet) -> None:
        retention = policies.find("retention", "*")
        self._quarantine.retain(RetentionSpec() if retention is None else retention.spec)  # type: ignore[arg-type]
        self._reconciler.activate(policies)

    def _on_load_ended(self) -> None:
        self._follower.report_now()
