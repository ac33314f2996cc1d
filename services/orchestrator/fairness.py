"""Whose turn it is among tenants of weighted risk classes; earliest deadline first in a tenant.

Start-time fair queueing over flows, one for each tenant of a risk class. A flow's weight is its
class's weight divided by the tenants that wait in that class, so classes share by weight and the
tenants of a class equally. A flow's start is where its last service ended, in rows ÷ weight, but
never before the time of the whole; the earliest start is next. So nobody waits for more than the
others' weights entitle them to, and who was idle has saved up nothing.
Source: Goyal, Vin, Cheng, "Start-time fair queueing", SIGCOMM 1996.

Rows of a token model count as what they cost: a part's `charge` are the rows of a full batch that
it stands for. A part that goes alone never joins others, nor do others wait behind it: the batch
that is being made leaves it where it is, takes what may join, and the next batch of its flow is it.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush, heapreplace

from services.orchestrator.batching import Window
from services.orchestrator.config import flows_idle_max
from services.orchestrator.deadlines import NEVER
from services.orchestrator.request import Part

_compact_min = 64


def deadline_of(part: Part) -> float:
    """When its request ends."""
    return part.work.deadline_s


class Flow:
    """One tenant of one risk class; `rows` good rows wait in it, those that go alone in `lone`. A
    part that left early stays there as a dead entry (its `flow` is None) until it is reached or
    the dead outnumber the living. `owes_lone`: the last batch left a lone part behind."""

    def __init__(self, risk_level: int) -> None:
        self.risk_level = risk_level
        self.finish = 0.0
        self.is_waiting = False
        self.owes_lone = False
        self.rows = 0
        self.parts: deque[Part] = deque()
        self.lone: deque[Part] = deque()
        self._dead = 0

    def forget(self, part: Part) -> None:
        """The part ended while it waited."""
        part.flow = None
        self.rows -= part.charge
        self._dead += 1
        if self._dead > _compact_min and self._dead * 2 > len(self.parts) + len(self.lone):
            for parts in (self.parts, self.lone):
                living = [part for part in parts if part.flow is not None]
                parts.clear()
                parts.extend(living)
            self._dead = 0

    def rows_until(self, deadline_s: float) -> float:
        """About how many of the rows go before a part with this deadline."""
        parts = self.parts
        if not parts or deadline_s >= parts[-1].work.deadline_s:
            return float(self.rows)
        return self.rows * bisect_right(parts, deadline_s, key=deadline_of) / len(parts)

    def drop_dead(self) -> None:
        """Afterwards the first part of each kind, if there is one, is alive."""
        for parts in (self.parts, self.lone):
            while parts and parts[0].flow is None:
                parts.popleft()
                self._dead -= 1

    def source(self, *, joins: bool) -> deque[Part] | None:
        """Where its next part is, dead ones dropped: to begin a batch with, or (`joins`) to join
        one that others are in. None: only lone ones are left, which do not join.

        Lone and joining parts take turns batch by batch, so that neither waits for the other's
        queue to be empty; `lone` is not empty."""
        self.drop_dead()
        if self.lone:
            if joins:
                self.owes_lone = True
                return self.parts or None
            if self.owes_lone or not self.parts:
                self.owes_lone = False
                return self.lone
            self.owes_lone = True
        return self.parts


class RiskClass:
    """The waiting flows of one risk class: `heap` by their starts, `rows` good rows in them.
    `taken` counts the rows that ever left, `aside` the flows that a batch leaves out."""

    def __init__(self, risk_level: int, weight: float) -> None:
        self.risk_level = risk_level
        self.weight = weight
        self.rows = 0
        self.taken = 0
        self.aside = 0
        self.heap: list[tuple[float, int, Flow]] = []


class FairOrder:
    """Flows in order of their starts. `rows` good rows of `parts` wait, by risk level less one in
    `classes`; `served` is what has left, in rows ÷ the weight of their classes.

    A part that waited `aging_s` is charged by the weight of the next higher class, and so on: what
    has waited for seconds is caught up with faster than its class's share alone would.
    """

    def __init__(self, weights: Mapping[int, float], aging_s: float = NEVER) -> None:
        self.rows = 0
        self.parts = 0
        self.served = 0.0
        self.classes = [RiskClass(risk, weights[risk]) for risk in sorted(weights)]
        self.aging_s = aging_s
        self._time = 0.0
        self._flows: dict[tuple[int, str], Flow] = {}
        self._pushed = 0

    def weigh(self, weights: Mapping[int, float], aging_s: float) -> None:
        """The classes' weights from now on."""
        self.aging_s = aging_s
        for each in self.classes:
            each.weight = weights[each.risk_level]

    def flow_of(self, risk_level: int, tenant_id: str) -> Flow | None:
        """The tenant's flow of this class, if it has one."""
        return self._flows.get((risk_level, tenant_id))

    def push(self, part: Part) -> None:
        """The part waits in its tenant's flow, behind those with the same or an earlier
        deadline."""
        body = part.work.body
        flow = self._flows.get((body.risk_level, body.tenant_id))
        if flow is None:
            flow = self._new_flow(body.risk_level, body.tenant_id)
        parts = flow.lone if part.is_alone else flow.parts
        part.flow = flow
        if not part.charge:
            part.charge = part.good_rows
        rows = part.charge
        if parts and part.work.deadline_s < parts[-1].work.deadline_s:
            insort(parts, part, key=deadline_of)
        else:
            parts.append(part)
        each = self.classes[flow.risk_level - 1]
        self.rows += rows
        each.rows += rows
        flow.rows += rows
        self.parts += 1
        if not flow.is_waiting:
            flow.is_waiting = True
            self._pushed += 1
            heappush(each.heap, (max(flow.finish, self._time), self._pushed, flow))

    def forget(self, part: Part) -> None:
        """The part ended while it waited."""
        flow = part.flow
        assert flow is not None, "only a waiting part can be forgotten"
        flow.forget(part)
        self.rows -= part.charge
        self.classes[flow.risk_level - 1].rows -= part.charge
        self.parts -= 1

    def take(
        self,
        window: Window,
        now_s: float,
        only: Sequence[RiskClass] = (),
        *,
        is_apart: bool = False,
    ) -> list[Part]:
        """The next parts that make a batch together, of the classes in `only` or of all: in order,
        until one does not fit. The first one always does: a part made under an earlier, larger
        window must not wait for ever.

        `is_apart`: they go to a replica that others have no share in. That counts as service, but
        does not move the time at which whoever was idle begins, unless nobody else waits."""
        among = only or self.classes
        moves_time = not is_apart or self.rows == sum([each.rows for each in among])
        batch: list[Part] = []
        aside: list[tuple[RiskClass, tuple[float, int, Flow]]] = []
        rows = size = longest = 0
        while True:
            each = _first(among)
            if each is None:
                break
            start, _, flow = each.heap[0]
            parts = flow.parts
            if flow.lone:
                lone_or_joining = flow.source(joins=bool(batch))
                if lone_or_joining is None:
                    aside.append((each, heappop(each.heap)))
                    each.aside += 1
                    continue
                parts = lone_or_joining
            elif parts and parts[0].flow is None:
                flow.drop_dead()
            if parts:
                part = parts[0]
                rows += part.good_rows
                size += part.bytes
                if part.longest > longest:
                    longest = part.longest
                if batch and (
                    rows > window.rows_max
                    or size > window.bytes_max
                    or rows * longest > window.tokens_max
                ):
                    break
                parts.popleft()
                part.flow = None
                batch.append(part)
                if moves_time and start > self._time:
                    self._time = start
                self._charge(each, flow, start, part.charge, now_s - part.entered_s)
            if flow.parts or flow.lone:
                self._pushed += 1
                heapreplace(each.heap, (flow.finish, self._pushed, flow))
            else:
                heappop(each.heap)
                flow.is_waiting = False
            if batch and batch[-1].is_alone:
                break
        for each, entry in aside:
            heappush(each.heap, entry)
            each.aside = 0
        self.parts -= len(batch)
        return batch

    def _charge(
        self, each: RiskClass, flow: Flow, start: float, rows: int, waited_s: float
    ) -> None:
        """Rows of a flow leave: its next start is as much later as its share says."""
        weight = each.weight
        if waited_s >= self.aging_s:
            weight = self._aged(each, waited_s)
        flow.finish = start + rows * (len(each.heap) + each.aside) / weight
        flow.rows -= rows
        each.rows -= rows
        each.taken += rows
        self.rows -= rows
        self.served += rows / each.weight

    def _aged(self, each: RiskClass, waited_s: float) -> float:
        """The weight of a class as many higher as the part has waited `aging_s`, never less than
        its own."""
        steps = int(min(waited_s / self.aging_s, len(self.classes)))
        higher = max(0, each.risk_level - 1 - steps)
        return max(each.weight, self.classes[higher].weight)

    def _new_flow(self, risk_level: int, tenant_id: str) -> Flow:
        if len(self._flows) >= flows_idle_max:
            self._flows = {key: flow for key, flow in self._flows.items() if flow.is_waiting}
        flow = self._flows[risk_level, tenant_id] = Flow(risk_level)
        return flow


def _first(among: Sequence[RiskClass]) -> RiskClass | None:
    """The class whose turn it is: that of the earliest start."""
    best = None
    for each in among:
        if each.heap and (best is None or each.heap[0] < best.heap[0]):
            best = each
    return best
