"""Handlers of the ledger: `receipts` in, `trace` out."""

import msgspec

from contracts.control import Receipts, ReceiptsStored, Trace, TraceRequest
from contracts.errors import MeshError
from contracts.stages import STAGES, Hop, Timing
from contracts.types import UNSET
from services.control_plane.chain import format_instant
from services.control_plane.counters import Counters
from services.control_plane.ledger import Found, Ledger
from shared import logs
from shared.rpc.server import Call

log = logs.get("services.control_plane.accounts")


class Accounts:
    """What was answered."""

    def __init__(self, ledger: Ledger, counters: Counters) -> None:
        self._ledger = ledger
        self._counters = counters
        self.duplicates = 0
        self.unreadable = 0

    async def receipts(self, call: Call) -> ReceiptsStored:
        """Keep a part of a spool; when it is answered the spool may forget it."""
        body: Receipts = call.body
        stored = await self._ledger.put(body.receipts, body.combinations)
        kept = len(body.receipts) - stored.duplicates - stored.unreadable
        self._counters.received(kept, stored)
        self.duplicates += stored.duplicates
        self.unreadable += stored.unreadable
        if stored.unreadable:
            log.error(
                "receipts_unreadable",
                spool=body.spool,
                through=body.through,
                count=stored.unreadable,
            )
        return ReceiptsStored(
            through=body.through, counted=stored.counted, duplicates=stored.duplicates
        )

    async def trace(self, call: Call) -> Trace:
        """Lineage, times and hops of one request."""
        body: TraceRequest = call.body
        found = await self.find(call, body.trace_id)
        receipt = found.receipt
        stages = dict(zip(STAGES, receipt.stages_us, strict=False))
        hops = [Hop(instance=name, received=at, sent=to) for name, at, to in receipt.hops]
        timing = {name: stages.get(name, 0) for name in STAGES}
        return Trace(
            trace_id=receipt.trace_id,
            id=receipt.id,
            tenant_id=receipt.tenant_id,
            at=format_instant(receipt.at_us),
            status=receipt.status,
            variant=receipt.variant,
            degraded=receipt.degraded,
            marks=receipt.marks,
            risk_level=receipt.risk_level,
            peer_uid=receipt.peer_uid,
            rows=receipt.rows,
            tokens_in=receipt.tokens_in,
            tokens_out=receipt.tokens_out,
            compute_us=receipt.compute_us,
            timing_us=Timing(total=receipt.total_us, hops=hops, **timing),
            hops=hops,
            combination=UNSET if found.combination is None else found.combination,
            answers=found.answers,
            entity=receipt.entity or UNSET,
        )

    async def find(self, call: Call, trace_id: str) -> Found:
        """The receipt of a trace. Another tenant's is as unknown as none: TRACE_UNKNOWN."""
        found = await self._ledger.trace(trace_id)
        if found is None or not call.peer.has_tenant(found.receipt.tenant_id):
            raise MeshError(
                "TRACE_UNKNOWN",
                f"no receipt has the trace id {trace_id}; one arrives up to a second after its"
                " answer",
                details={"asked": trace_id},
            )
        return _at_its_version(found)


def _at_its_version(found: Found) -> Found:
    """A combination is kept once, so its policy version is that of its first receipt; the same
    policies in force again later have another."""
    receipt, combination = found.receipt, found.combination
    if combination is not None and combination.policy_version != receipt.policy_version:
        combination = msgspec.structs.replace(combination, policy_version=receipt.policy_version)
    return Found(receipt, combination, found.answers)
