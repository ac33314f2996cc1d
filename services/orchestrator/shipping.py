"""Sends the spool's records to the control plane, in order, one call in flight."""

import asyncio
from typing import cast

from msgspec import Raw

from contracts.control import Receipts, ReceiptsStored
from contracts.errors import MeshError
from contracts.lineage import Combination
from contracts.types import Empty
from services.orchestrator.config import (
    control_plane_probe_s,
    ship_backoff_s_max,
    ship_bytes_max,
    ship_interval_s,
    ship_receipts_max,
)
from services.orchestrator.segment import Part
from services.orchestrator.spool import COMBINATION, RECEIPT, Spool
from shared import logs
from shared.rpc.client import RpcClient

log = logs.get("services.orchestrator.spool")
_RECEIPT, _COMBINATION = RECEIPT[0], COMBINATION[0]
_AWAY = "the control plane is away"
_NO_ANSWER = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"})
"""Errors of a call that nobody answered."""


def shipment(spool: str, part: Part) -> Receipts:
    """The call that carries these records of a file, spliced as they were written."""
    contents = part.contents
    receipts = [content[1:] for content in contents if content[0] == _RECEIPT]
    others: list[bytes] = []
    if len(receipts) < len(contents):
        others = [content[1:] for content in contents if content[0] == _COMBINATION]
    return Receipts(
        spool=spool,
        through=part.number,
        receipts=cast(list[Raw], _list_of(receipts)),
        combinations=cast(list[Combination], _list_of(others)),
    )


def _fault_of(error: MeshError) -> str:
    """What health says of a failed call."""
    if error.name in _NO_ANSWER:
        return _AWAY
    return f"the control plane takes no receipts: {error.name}: {error.message}"


def _list_of(encoded: list[bytes]) -> Raw:
    """An encoded list of encoded objects: one to splice instead of hundreds."""
    return Raw(b"".join((b"\xdd", len(encoded).to_bytes(4, "big"), *encoded)))


class Shipper:
    """The background task that empties the spool; `shipped` counts records. It begins once
    `begins` is set: when the receipts of dead processes, the oldest, have been found.

    `fault` is why receipts do not get away, "" while they do. The supervisor holds the control
    plane's socket, so a connection alone means nothing; it is pinged before the first records,
    after each failure and while there is nothing to ship.
    """

    def __init__(self, spool: Spool, client: RpcClient, emptied: asyncio.Event) -> None:
        self._spool = spool
        self._client = client
        self._emptied = emptied
        self.begins = asyncio.Event()
        self.fault = _AWAY
        self.shipped = 0
        self.failures = 0

    def lost(self) -> None:
        """The control plane hung up. A call to its successor, which the supervisor's socket takes
        in at once, may wait for seconds; health does not."""
        self._failed(_AWAY, "it hung up")

    def _failed(self, fault: str, reason: str) -> None:
        """Say so once, until receipts get away again."""
        if not self.fault:
            log.warning("receipts_not_shipped", reason=reason)
        self.fault = fault

    async def run(self) -> None:
        """Ship until cancelled; a control plane that is away is waited for."""
        backoff_s, idle_s = ship_interval_s, control_plane_probe_s
        while True:
            try:
                if self.fault or idle_s >= control_plane_probe_s:
                    await self._client.call("ping", Empty())
                    idle_s = 0.0
                while self.begins.is_set() and await self.ship():
                    self.fault, idle_s = "", 0.0
                self.fault, backoff_s = "", ship_interval_s
            except MeshError as error:
                self._failed(_fault_of(error), str(error))
                self.failures += 1
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, ship_backoff_s_max)
            else:
                await asyncio.sleep(ship_interval_s)
                idle_s += ship_interval_s

    async def ship(self) -> bool:
        """Send one call's worth of the oldest file that has any; whether another one waits."""
        segment = self._spool.oldest()
        if segment is None:
            return False
        part = segment.part(ship_receipts_max, ship_bytes_max)
        is_full = part.number < segment.records or segment is not self._spool.current
        body = shipment(segment.name, part)
        answer: ReceiptsStored = await self._client.call("receipts", body)
        stored = min(answer.through, part.number) - segment.acknowledged
        if stored > 0:
            is_whole = answer.through >= part.number
            segment.acknowledge(part if is_whole else segment.part(stored, ship_bytes_max))
            self.shipped += stored
        if segment.is_acknowledged:
            self._emptied.set()
        return stored > 0 and is_full
