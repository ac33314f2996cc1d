"""Asks each service's real socket for its health, again and again.

Any answer, also a refusal, shows that the service's loop and listener work.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contracts.errors import MeshError
from contracts.service import Health, Metrics
from contracts.types import Empty
from shared.clock import Clock
from shared.rpc.client import RpcClient
from supervisor.liveness import Patience

_LOCAL = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED"})
"""Errors that mean no answer came."""


class Probe:
    """One listening socket's prober. `health` is the last one received, None before the first.

    `on_answer` gets each Health, or None when something answered without one.
    """

    def __init__(
        self,
        path: Path,
        service: str,
        *,
        patience: Patience,
        clock: Clock,
        on_answer: Callable[[Health | None], None],
    ) -> None:
        self.health: Health | None = None
        self._client = RpcClient(str(path), service, clock=clock)
        self._patience = patience
        self._on_answer = on_answer
        self._wake = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"probe {path.name}")

    def now(self) -> None:
        """Probe without waiting for the next turn."""
        self._wake.set()

    async def metrics(self) -> Metrics | None:
        """What the service counted; None when it does not answer in time."""
        answer = await self.ask("metrics")
        assert answer is None or isinstance(answer, Metrics), "the contract's response"
        return answer

    async def ask(self, method: str) -> Any:
        """The answer of a method that takes an empty body; None when there is none in time."""
        try:
            return await self._client.call(
                method, Empty(), timeout_s=self._patience.probe_timeout_s
            )
        except MeshError:
            return None

    async def close(self) -> None:
        """Stop probing."""
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._client.close()

    async def _run(self) -> None:
        while True:
            try:
                self.health = await self._client.call(
                    "health", Empty(), timeout_s=self._patience.probe_timeout_s
                )
                self._on_answer(self.health)
            except MeshError as error:
                if error.name not in _LOCAL:
                    self._on_answer(None)
                else:
                    self.health = None
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), self._patience.probe_s)
            except TimeoutError:
                continue
