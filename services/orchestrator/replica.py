"""One runtime: what it has ready, how many batches it takes, and those it has."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from contracts.pack import LoadedModel, LoadedModels
from contracts.service import Health
from contracts.types import Empty
from services.orchestrator.config import introduction_s_max
from services.orchestrator.execution import Batch
from services.orchestrator.plan import Key
from shared import logs
from shared.clock import Clock
from shared.rpc.client import RpcClient

log = logs.get("services.orchestrator.replicas")


class Replica:
    """The runtime behind one socket, whichever instance it is now. `free_s`: when it should be done
    with the batches that it has."""

    def __init__(self, index: int, path: Path, clock: Clock, on_change: Callable[[], None]) -> None:
        self.index = index
        self.instance = self._nameless = f"model_runtime.{index}"
        self.credits = 0
        self.batches: set[Batch] = set()
        self.shadows = 0
        self.loaded: Sequence[LoadedModel] = ()
        self.ready: frozenset[Key] = frozenset()
        self.paused_until_s = 0.0
        self.free_s = 0.0
        self.poll_due = asyncio.Event()
        self.client = RpcClient(
            str(path),
            "model_runtime",
            clock=clock,
            on_connected=self.poll_due.set,
            on_lost=self._lost,
        )
        self._on_change = on_change

    def has_credit(self, now_s: float) -> bool:
        """It takes a batch now."""
        return (
            len(self.batches) + self.shadows < self.credits
            and self.client.connected
            and now_s >= self.paused_until_s
        )

    def is_before(self, other: "Replica") -> bool:
        """It has fewer batches than the other, or as many and is done with them earlier."""
        mine, others = len(self.batches), len(other.batches)
        return mine < others or (mine == others and self.free_s < other.free_s)

    async def poll(self) -> None:
        """Ask what it holds. Raises MeshError."""
        if self.instance == self._nameless:
            # A socket that the supervisor holds for a replica that is not running yet: ask once
            # and wait, instead of filling the socket with questions.
            health: Health = await self.client.call("health", Empty(), timeout_s=introduction_s_max)
            self.instance = health.instance
        answer: LoadedModels = await self.client.call("models", Empty())
        ready = frozenset(
            (model.name, model.version, model.digest)
            for model in answer.models
            if model.state == "ready"
        )
        self.credits, self.loaded = answer.credits, answer.models
        if ready != self.ready:
            self.ready = ready
            log.info("replica_ready", replica=self.instance, models=sorted(ready))
            self._on_change()

    def _lost(self) -> None:
        log.warning("replica_lost", replica=self.instance, batches=len(self.batches))
        self.instance = self._nameless
        self.ready, self.loaded = frozenset(), ()
        self._on_change()
