"""One subscription to the control plane after another, for ever, into a bounded queue.

Knows nothing of what the items mean.
"""

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from contracts.distribution import PolicyItem, Subscribe
from contracts.errors import MeshError
from shared import logs
from shared.rpc.client import RpcClient

log = logs.get("shared.policy_stream")

_pause_s_min = 0.05
_pause_s_max = 1.0
"""Before the next subscription, doubled while none of them brings an item."""
_items_waiting_max = 64
"""A push sends two items and waits for this instance; more waiting means a stuck disk."""


class PolicyStream:
    """`items` of the subscription; a dead control plane is only waited for.

    `body()` gives the request of each new subscription.
    """

    def __init__(self, client: RpcClient, body: Callable[[], Subscribe]) -> None:
        self.items: asyncio.Queue[PolicyItem] = asyncio.Queue(_items_waiting_max)
        self._client = client
        self._body = body
        self._call: asyncio.Task[Any] | None = None
        self._successor: asyncio.Task[Any] | None = None
        self._pause_s = _pause_s_min

    def restart(self) -> None:
        """End the subscription and make a new one, which begins with the version in force."""
        for call in (self._call, self._successor):
            if call is not None:
                call.cancel()

    def renew(self) -> "asyncio.Future[PolicyItem] | None":
        """Make a new subscription in place of the one there is, with no moment in which there is
        none: a push would take this instance for lost. The control plane ends the old one. Returns
        what becomes its first item; None when there is none to replace."""
        if self._call is None or self._successor is not None:
            return None
        first: asyncio.Future[PolicyItem] = asyncio.get_running_loop().create_future()
        self._successor = self._ask(first)
        return first

    async def run(self) -> None:
        """Subscribe until cancelled."""
        while True:
            log.debug("policy_stream_ended", reason=await self._subscribe())
            if self._successor is not None and not self._successor.cancelled():
                continue
            await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.0))
            self._pause_s = min(2 * self._pause_s, _pause_s_max)

    async def _subscribe(self) -> str:
        """One subscription, from the wait for a connection to its end; why it ended."""
        call, self._successor = self._successor or self._ask(), None
        self._call = call
        try:
            await asyncio.wait({call})
        except asyncio.CancelledError:
            self.restart()  # nothing of it outlives this task
            raise
        finally:
            self._call = None
            call.cancel()
        if call.cancelled():
            return "restarted"
        try:
            return str(call.result().reason)
        except MeshError as error:
            return str(error)

    def _ask(self, first: "asyncio.Future[PolicyItem] | None" = None) -> asyncio.Task[Any]:
        put = partial(self._put, first)
        return asyncio.create_task(
            self._client.call("subscribe", self._body(), on_item=put), name="subscribe"
        )

    def _put(self, first: "asyncio.Future[PolicyItem] | None", item: PolicyItem) -> None:
        self._pause_s = _pause_s_min
        if first is not None and not first.done():
            first.set_result(item)
        if self.items.full():
            log.error("policy_items_overrun", waiting=self.items.qsize())
            self.restart()
        else:
            self.items.put_nowait(item)
