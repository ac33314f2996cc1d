"""The connection of one instance to the control plane: subscribe, subscribe again, bounded queue.

Knows nothing of what the items mean.
"""

import asyncio
import random
from collections.abc import Callable

from contracts.distribution import PolicyItem, Subscribe, Subscribed
from contracts.errors import MeshError
from shared import logs
from shared.rpc.client import RpcClient

log = logs.get("shared.policy_stream")

_connect_timeout_s = 1.0
_backoff_s_min = 0.05
_backoff_s_max = 1.0
_items_waiting_max = 64
"""A push sends two items and waits for this instance; more waiting means a stuck disk."""


class PolicyStream:
    """Items of one subscription after another, for ever; a dead control plane is only waited for.

    `subscription()` gives the body of each new subscription.
    """

    def __init__(self, client: RpcClient, subscription: Callable[[], Subscribe]) -> None:
        self.items: asyncio.Queue[PolicyItem] = asyncio.Queue(_items_waiting_max)
        self._client = client
        self._subscription = subscription
        self._call: asyncio.Task[Subscribed] | None = None
        self._connected = asyncio.Event()
        self._backoff_s = _backoff_s_min

    def connected(self) -> None:
        """The client is connected (again): subscribe without waiting for the back-off."""
        self._connected.set()

    def restart(self) -> None:
        """End the subscription and make a new one, which begins with the version in force."""
        if self._call is not None:
            self._call.cancel()

    async def run(self) -> None:
        """Subscribe until cancelled."""
        while True:
            self._connected.clear()
            reason = await self._subscribe()
            log.debug("policy_stream_ended", reason=reason)
            try:
                async with asyncio.timeout(self._backoff_s * random.uniform(0.5, 1.0)):
                    await self._connected.wait()
            except TimeoutError:
                self._backoff_s = min(2 * self._backoff_s, _backoff_s_max)

    async def _subscribe(self) -> str:
        """One subscription from beginning to end; why it ended."""
        try:
            if not self._client.connected:
                await self._client.connect(_connect_timeout_s)
        except (MeshError, OSError) as error:
            return str(error)
        call = asyncio.ensure_future(
            self._client.call("subscribe", self._subscription(), on_item=self._put)
        )
        self._call = call
        try:
            await asyncio.wait({call})
        finally:
            self._call = None
            call.cancel()
        if call.cancelled():
            return "restarted"
        error = call.exception()
        if error is None:
            return call.result().reason
        if isinstance(error, MeshError):
            return str(error)
        raise error

    def _put(self, item: PolicyItem) -> None:
        self._backoff_s = _backoff_s_min
        if self.items.full():
            log.error("policy_items_overrun", waiting=self.items.qsize())
            self.restart()
        else:
            self.items.put_nowait(item)
