"""The reports of one instance, each half second, and what their answers say: whether it lags."""

import asyncio
import contextlib
from collections.abc import Callable

from msgspec.structs import replace

from contracts.distribution import Position, Report, Reported
from contracts.errors import MeshError
from contracts.limits import heartbeat_s
from contracts.types import UNSET
from shared import logs
from shared.clock import Clock
from shared.policy_steps import compare
from shared.rpc.client import RpcClient

log = logs.get("shared.policy_heartbeat")

behind_s_max = heartbeat_s
"""How long reports may show a newer version before this instance counts as fenced: a moment is
normal while an activation is on its way."""
goodbye_s_max = 0.25
"""How long a process that drains waits until its goodbye was heard."""


class Heartbeat:
    """`report()` makes the next report; `on_fenced` is called while the control plane has a
    version that lastingly does not get here."""

    def __init__(
        self,
        client: RpcClient,
        clock: Clock,
        report: Callable[[], Report],
        on_fenced: Callable[[], None],
    ) -> None:
        self.fenced = False
        self._client = client
        self._clock = clock
        self._report = report
        self._on_fenced = on_fenced
        self._behind_since_s: float | None = None
        self._due = asyncio.Event()

    def now(self) -> None:
        """Send the next report at once."""
        self._due.set()

    async def run(self) -> None:
        """Report until cancelled; a dead control plane is only waited for."""
        while True:
            self._due.clear()
            if self._client.connected:
                try:
                    await self._send()
                except MeshError as error:
                    log.debug("report_lost", reason=error.message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(heartbeat_s):
                    await self._due.wait()

    async def say_goodbye(self) -> None:
        """The last report, once `run` is cancelled: nobody needs to wait for this instance. One
        that is not heard is required until it turns stale."""
        if not self._client.connected:
            return
        report = replace(self._report(), leaving=True)
        try:
            await self._client.call("report", report, timeout_s=goodbye_s_max)
        except MeshError as error:
            log.debug("goodbye_lost", reason=error.message)

    async def _send(self) -> None:
        report = self._report()
        answer: Reported = await self._client.call("report", report, timeout_s=heartbeat_s)
        self._notice(answer.position, None if report.position is UNSET else report.position)

    def _notice(self, head: Position, here: Position | None) -> None:
        """A lasting difference to the control plane's version fences this instance."""
        now_s = self._clock.monotonic()
        if compare(head, here) != "newer":
            self._behind_since_s, self.fenced = None, False
        elif self._behind_since_s is None:
            self._behind_since_s = now_s
        elif now_s - self._behind_since_s >= behind_s_max:
            self.fenced = True
            log.warning("policy_fenced", newest=head.sequence)
            self._on_fenced()
