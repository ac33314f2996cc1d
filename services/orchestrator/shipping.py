"""Sends the spool's records to the control plane, in order, one call in flight."""

import asyncio
from typing import cast

from msgspec import Raw

from contracts.control import Receipts, ReceiptsStored
from contracts.errors import MeshError
from contracts.lineage import Combination
from services.orchestrator.config import (
    ship_backoff_s_max,
    ship_bytes_max,
    ship_interval_s,
    ship_receipts_max,
)
from services.orchestrator.segment import Segment
from services.orchestrator.spool import RECEIPT, Spool
from shared import logs
from shared.rpc.client import RpcClient

log = logs.get("services.orchestrator.spool")


def shipment(segment: Segment) -> Receipts:
    """The file's next records, at most `ship_receipts_max` in about `ship_bytes_max`."""
    receipts: list[Raw] = []
    combinations: list[Raw] = []
    size, through = 0, segment.acknowledged
    for number, _, content in segment.entries():
        if len(receipts) == ship_receipts_max or size > ship_bytes_max:
            break
        (receipts if content[:1] == RECEIPT else combinations).append(Raw(content[1:]))
        size += len(content)
        through = number
    return Receipts(
        spool=segment.name,
        through=through,
        receipts=receipts,
        # Spliced as they were written; the receiver gets what the contract says.
        combinations=cast(list[Combination], combinations),
    )


class Shipper:
    """The background task that empties the spool; `shipped` counts records."""

    def __init__(self, spool: Spool, client: RpcClient, emptied: asyncio.Event) -> None:
        self._spool = spool
        self._client = client
        self._emptied = emptied
        self.shipped = 0
        self.failures = 0

    async def run(self) -> None:
        """Ship until cancelled; a control plane that is away is waited for."""
        backoff_s = ship_interval_s
        while True:
            try:
                is_behind = self._client.connected and await self.ship()
            except MeshError as error:
                self.failures += 1
                log.warning("receipts_not_shipped", reason=str(error), retry_s=backoff_s)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, ship_backoff_s_max)
                continue
            backoff_s = ship_interval_s
            if not is_behind:
                await asyncio.sleep(ship_interval_s)

    async def ship(self) -> bool:
        """Send one call's worth of the oldest file that has any; whether more waits."""
        segment = self._spool.oldest()
        if segment is None:
            return False
        body = shipment(segment)
        answer: ReceiptsStored = await self._client.call("receipts", body)
        before = segment.acknowledged
        segment.acknowledge(answer.through)
        self.shipped += segment.acknowledged - before
        if segment.is_acknowledged:
            self._emptied.set()
        return len(body.receipts) == ship_receipts_max or segment is not self._spool.current
