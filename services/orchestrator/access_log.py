"""One record for each request that failed or was refused, and for a sample of the answered ones;
each attributes the time to hops, so that a timeout names its process. Of those refused for the load
some a second are recorded: under overload the log must not cost more than the answers.
"""

from typing import Any, Final

from contracts.errors import MeshError
from contracts.stages import STAGES, Hop
from services.orchestrator.config import access_sample_of, load_refusals_logged_per_s
from services.orchestrator.request import Outcome, Part, Where, Work
from shared import logs
from shared.rpc.server import Call

log = logs.get("services.orchestrator.access")
_sample_of: Final = access_sample_of
_LOAD = frozenset({"OVERLOADED", "QUOTA_EXCEEDED"})
"""Errors that say nothing of the request, only of how much there is."""


class AccessLog:
    """Counts successes and refusals to sample them."""

    def __init__(self) -> None:
        self._successes = 0
        self._second = 0
        self._logged = 0
        self._unlogged = 0

    def is_due(self) -> bool:
        """A request was answered; whether it is to be recorded: the first, and then one of
        `access_sample_of`."""
        self._successes += 1
        return self._successes % _sample_of == 1

    def answered(self, work: Work, stages_us: list[int], hops: list[Hop]) -> None:
        """Record a request that was answered."""
        _bound(work).info(
            "answered",
            model_name=work.plan.name,
            variant=work.variant,
            rows=work.rows,
            sample_of=access_sample_of,
            **{f"{stage}_us": us for stage, us in zip(STAGES, stages_us, strict=True)},
            hops=[[hop.instance, hop.received, hop.sent] for hop in hops],
        )

    def ended(self, work: Work, error: MeshError, outcome: Outcome, now_s: float) -> None:
        """An admitted request ended without an answer."""
        _bound(work).warning(
            outcome.value,
            model_name=work.plan.name,
            error=error.name,
            reason=error.message,
            rows=work.rows,
            total_us=int((now_s - work.received_s) * 1e6),
            parts=[_whereabouts(part, work) for part in work.parts if part.where is not Where.DONE],
        )

    def refused(self, call: Call, error: MeshError) -> None:
        """A request was refused at the door; `unlogged` others were since the last record."""
        if error.name in _LOAD and self._is_enough(int(call.received_s)):
            self._unlogged += 1
            return
        unlogged, self._unlogged = self._unlogged, 0
        body = call.body
        logs.request(
            log,
            trace_id=call.trace_id,
            request_id=body.id or call.trace_id,
            tenant_id=body.tenant_id,
            model_version=body.model_version or logs.NONE,
        ).warning(
            "refused",
            model_name=body.model_name,
            error=error.name,
            reason=error.message,
            peer_uid=call.peer.uid,
            unlogged=unlogged,
        )

    def _is_enough(self, second: int) -> bool:
        """Whether this second has its records of refusals for the load."""
        if second != self._second:
            self._second, self._logged = second, 0
        self._logged += 1
        return self._logged > load_refusals_logged_per_s


def _bound(work: Work) -> Any:
    return logs.request(
        log,
        trace_id=work.call.trace_id,
        request_id=work.request_id,
        tenant_id=work.body.tenant_id,
        model_version=work.plan.version,
    )


def _whereabouts(part: Part, work: Work) -> dict[str, Any]:
    """Which stage holds the part, since when, and the stamps of the hops it has behind it."""

    def us(moment_s: float) -> int:
        return int((moment_s - work.received_s) * 1e6)

    start_us = int(work.received_s * 1e6)
    place: dict[str, Any] = {"where": part.where.value, "since_us": us(part.entered_s)}
    if part.features is not None:
        fabric = part.features
        place["fabric"] = [
            fabric.instance, fabric.received_us - start_us, fabric.sent_us - start_us
        ]  # fmt: skip
    if part.where is Where.EXECUTE and part.batch is not None:
        place |= {"runtime": part.batch.instance, "sent_us": us(part.batch.sent_s)}
    return place
