"""The shape of a service, and the server made of it."""

import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contracts.service import Health, Metric, Metrics, Statistics
from contracts.types import Scalar
from shared.channel import Pressure
from shared.environment import Environment
from shared.rpc.server import Call, Handler, Server


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the service serves, serves less, and why; and the policy version in force."""

    ready: bool
    degraded: bool = False
    reasons: list[str] = field(default_factory=list)
    policy_version: int = 0


class StartRefused(Exception):
    """What the operator gave cannot be used: starting again would end the same way. The message
    names the file, what is wrong in it and the remedy."""


class Unfit(Exception):
    """Raised by a callback on the loop: this process can no longer do its work and cannot mend
    itself. It leaves at once, without draining, and is replaced; the message is the reason."""


class Service:
    """One service process. Subclasses set `name` and override what they need."""

    name: str

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def handlers(self) -> Mapping[str, Handler]:
        """The service's own methods; health, statistics and metrics are made from the below."""
        raise NotImplementedError

    async def start(self) -> None:
        """Load what is needed; when it returns, the process may be probed. Raises StartRefused,
        with which the process leaves without a traceback and is not restarted at once."""

    async def promoted(self) -> None:
        """Becomes the active process, before it accepts; called once in every active life."""

    async def drain(self) -> None:
        """Flush and close; the server has stopped and nothing is in flight."""

    def pressed(self, pressure: Pressure) -> None:
        """Memory is short somewhere: told each second while it is, and once when it is over."""

    def readiness(self) -> Readiness:
        """Whether requests can be answered now."""
        return Readiness(ready=True)

    def statistics(self) -> dict[str, Scalar]:
        """Counters and gauges beside the server's own."""
        return {}

    def metrics(self) -> list[Metric]:
        """Metric families of this process."""
        return []


def objects() -> dict[str, Scalar]:
    """Python's own objects: a leak of them shows here before it shows in resident memory. Full
    collections stop the interpreter: on the hot path less than one a minute is the aim (P5)."""
    return {
        "allocated_blocks": sys.getallocatedblocks(),
        "full_collections": gc.get_stats()[-1]["collections"],
    }


def build_server(service: Service, environment: Environment) -> Server:
    """The RPC server with the service's handlers and those that every service shares."""
    started_s = environment.clock.monotonic()

    def health(call: Call) -> Health:
        state = service.readiness()
        return Health(
            live=True,
            ready=state.ready,
            degraded=state.degraded,
            reasons=state.reasons,
            policy_version=state.policy_version,
            uptime_s=environment.clock.monotonic() - started_s,
            service=environment.service,
            instance=environment.instance,
        )

    def statistics(call: Call) -> Statistics:
        return Statistics(values={**server.statistics(), **service.statistics(), **objects()})

    def metrics(call: Call) -> Metrics:
        return Metrics(metrics=service.metrics(), instance=environment.instance)

    limits: dict[str, Any] = {}
    if connections_max := getattr(environment.config, "connections_max", None):
        limits["connections_max"] = connections_max
    server = Server(
        environment.service,
        {**service.handlers(), "health": health, "statistics": statistics, "metrics": metrics},
        instance=environment.instance,
        access=environment.access,
        clock=environment.clock,
        **limits,
    )
    return server
