"""Whose turn it is among tenants of weighted risk classes; earliest deadline first in a tenant.

Start-time fair queueing over flows, one for each tenant of a risk class. A flow's weight is its
class's weight divided by the tenants that wait in that class, so classes share by weight and the
tenants of a class equally. A flow's start is where its last service ended, in rows ÷ weight, but
never before the time of the whole; the earliest start is next. So nobody waits for more than the
others' weights entitle them to, and who was idle has saved up nothing.
Source: Goyal, Vin, Cheng, "Start-time fair queueing", SIGCOMM 1996.
"""

from bisect import insort
from collections import deque
from collections.abc import Mapping
from heapq import heappop, heappush, heapreplace

from services.orchestrator.batching import Window
from services.orchestrator.config import flows_idle_max
from services.orchestrator.request import Part

_compact_min = 64


def _deadline_s(part: Part) -> float:
    return part.work.deadline_s


class Flow:
    """One tenant of one risk class. A part that left early stays among `parts` as a dead entry
    (its `flow` is None) until it is reached or the dead outnumber the living."""

    def __init__(self, risk_level: int) -> None:
        self.risk_level = risk_level
        self.finish = 0.0
        self.is_waiting = False
        self.parts: deque[Part] = deque()
        self._dead = 0

    def forget(self, part: Part) -> None:
        """The part ended while it waited."""
        part.flow = None
        self._dead += 1
        if self._dead > _compact_min and self._dead * 2 > len(self.parts):
            living = [part for part in self.parts if part.flow is not None]
            self.parts.clear()
            self.parts.extend(living)
            self._dead = 0

    def drop_dead(self) -> None:
        """Afterwards the first part, if there is one, is alive."""
        parts = self.parts
        while parts and parts[0].flow is None:
            parts.popleft()
            self._dead -= 1


class FairOrder:
    """Flows in order of their starts. `rows` good rows of `parts` wait; `served` is what has left,
    in rows ÷ the weight of their classes."""

    def __init__(self, weights: Mapping[int, float]) -> None:
        self.weights = weights
        self.rows = 0
        self.parts = 0
        self.served = 0.0
        self._time = 0.0
        self._flows: dict[tuple[int, str], Flow] = {}
        self._waiting = dict.fromkeys(weights, 0)
        self._heap: list[tuple[float, int, Flow]] = []
        self._pushed = 0

    def push(self, part: Part) -> None:
        """The part waits in its tenant's flow, behind those with the same or an earlier
        deadline."""
        body = part.work.body
        flow = self._flows.get((body.risk_level, body.tenant_id))
        if flow is None:
            flow = self._new_flow(body.risk_level, body.tenant_id)
        parts = flow.parts
        part.flow = flow
        if parts and part.work.deadline_s < parts[-1].work.deadline_s:
            insort(parts, part, key=_deadline_s)
        else:
            parts.append(part)
        self.rows += part.good_rows
        self.parts += 1
        if not flow.is_waiting:
            flow.is_waiting = True
            self._waiting[flow.risk_level] += 1
            self._pushed += 1
            heappush(self._heap, (max(flow.finish, self._time), self._pushed, flow))

    def forget(self, part: Part) -> None:
        """The part ended while it waited."""
        assert part.flow is not None, "only a waiting part can be forgotten"
        part.flow.forget(part)
        self.rows -= part.good_rows
        self.parts -= 1

    def take(self, window: Window) -> list[Part]:
        """The next parts that make a batch together: in order, until one does not fit. The first
        one always does: a part made under an earlier, larger window must not wait for ever."""
        heap, weights, waiting = self._heap, self.weights, self._waiting
        batch: list[Part] = []
        rows = size = 0
        while heap:
            start, _, flow = heap[0]
            parts = flow.parts
            if parts and parts[0].flow is None:
                flow.drop_dead()
            if parts:
                part = parts[0]
                rows += part.good_rows
                size += part.bytes
                if batch and (rows > window.rows_max or size > window.bytes_max):
                    break
                parts.popleft()
                part.flow = None
                batch.append(part)
                weight = weights[flow.risk_level]
                flow.finish = start + part.good_rows * waiting[flow.risk_level] / weight
                self._time = start
                self.rows -= part.good_rows
                self.served += part.good_rows / weight
            if parts:
                self._pushed += 1
                heapreplace(heap, (flow.finish, self._pushed, flow))
            else:
                heappop(heap)
                flow.is_waiting = False
                waiting[flow.risk_level] -= 1
        self.parts -= len(batch)
        return batch

    def _new_flow(self, risk_level: int, tenant_id: str) -> Flow:
        if len(self._flows) >= flows_idle_max:
            self._flows = {key: flow for key, flow in self._flows.items() if flow.is_waiting}
        flow = self._flows[risk_level, tenant_id] = Flow(risk_level)
        return flow
