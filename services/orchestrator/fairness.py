"""Whose turn it is: fair among weighted children, earliest deadline first inside one tenant.

Start-time fair queueing at each level: a child's start is where its last service ended, measured in
rows ÷ weight, but never before its parent's time; the child with the earliest start is next. So
nobody waits for more than the others' weights entitle them to, and an idle child saves up nothing.
Source: Goyal, Vin, Cheng, "Start-time fair queueing", SIGCOMM 1996.
"""

from bisect import insort
from collections import deque
from heapq import heappop, heappush, heapreplace

from services.orchestrator.config import tenants_idle_max
from services.orchestrator.request import Part

_compact_min = 64


def _deadline_s(part: Part) -> float:
    return part.work.deadline_s


class Flow:
    """One tenant's parts, earliest deadline first. A part that left early stays as a dead entry
    (`part.flow` is None) until it is reached or the dead outnumber the living."""

    def __init__(self) -> None:
        self.weight = 1.0
        self.finish = 0.0
        self.is_active = False
        self._parts: deque[Part] = deque()
        self._dead = 0

    def push(self, part: Part) -> None:
        """Add a part behind those with the same deadline."""
        parts = self._parts
        part.flow = self
        if parts and _deadline_s(part) < _deadline_s(parts[-1]):
            insort(parts, part, key=_deadline_s)
        else:
            parts.append(part)

    def head(self) -> Part | None:
        """The part that leaves next."""
        parts = self._parts
        while parts:
            if parts[0].flow is not None:
                return parts[0]
            parts.popleft()
            self._dead -= 1
        return None

    def pop(self) -> Part:
        """Take the head, which the caller has seen."""
        part = self._parts.popleft()
        part.flow = None
        return part

    def forget(self, part: Part) -> None:
        """The part ended while it waited."""
        part.flow = None
        self._dead += 1
        if self._dead > _compact_min and self._dead * 2 > len(self._parts):
            self._parts = deque(part for part in self._parts if part.flow is not None)
            self._dead = 0


class Fair:
    """Children with weights; `time` is the start of the latest service. The heap holds those that
    have something waiting, and some whose parts all left early, until they are reached."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight
        self.finish = 0.0
        self.is_active = False
        self.time = 0.0
        self._heap: list[tuple[float, int, Flow | Fair]] = []
        self._pushed = 0

    def activate(self, child: "Flow | Fair") -> None:
        """The child has something waiting."""
        if not child.is_active:
            child.is_active = True
            self._pushed += 1
            heappush(self._heap, (max(child.finish, self.time), self._pushed, child))

    def head(self) -> Part | None:
        """The part that leaves next."""
        heap = self._heap
        while heap:
            child = heap[0][2]
            part = child.head()
            if part is not None:
                return part
            heappop(heap)
            child.is_active = False
        return None

    def pop(self) -> Part:
        """Take the head, which the caller has seen, on the account of its child."""
        start, _, child = self._heap[0]
        part = child.pop()
        self.time = start
        child.finish = start + part.good_rows / child.weight
        if child.head() is None:
            heappop(self._heap)
            child.is_active = False
        else:
            self._pushed += 1
            heapreplace(self._heap, (child.finish, self._pushed, child))
        return part


class Tenants(Fair):
    """One risk class: its tenants with equal weights."""

    def __init__(self, weight: float) -> None:
        super().__init__(weight)
        self._flows: dict[str, Flow] = {}

    def push(self, part: Part) -> None:
        """Add a part to its tenant's flow."""
        tenant = part.work.body.tenant_id
        flow = self._flows.get(tenant)
        if flow is None:
            if len(self._flows) >= tenants_idle_max:
                self._forget_idle()
            flow = self._flows[tenant] = Flow()
        flow.push(part)
        if not flow.is_active:
            self.activate(flow)

    def _forget_idle(self) -> None:
        """Tenants with nothing waiting begin anew; at most those with something are left, and
        their number is bounded by what may be in flight."""
        self._flows = {tenant: flow for tenant, flow in self._flows.items() if flow.is_active}
