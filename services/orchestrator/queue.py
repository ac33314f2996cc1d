"""What waits for a runtime: a lane for each model version.

Lanes take turns in proportion to the weights of what they serve; inside a lane see `fairness`.
"""

from collections import deque
from collections.abc import Callable, Mapping

from contracts.policies import PolicySet, PriorityPolicy, PrioritySpec
from services.orchestrator.batching import Window
from services.orchestrator.fairness import FairOrder
from services.orchestrator.plan import ModelPlan
from services.orchestrator.request import Part, Where

_compact_min = 64


class Lane:
    """What waits for one model version: `parts` with `rows` good rows.

    `finish` is where its service ended, in rows ÷ weight.
    """

    def __init__(self, plan: ModelPlan, window: Window, weights: Mapping[int, float]) -> None:
        self.plan = plan
        self.window = window
        self.rows = 0
        self.parts = 0
        self.finish = 0.0
        self._order = FairOrder(weights)
        self._arrivals: deque[Part] = deque()

    def set_weights(self, weights: Mapping[int, float]) -> None:
        """Weights of the risk classes from now on."""
        self._order.weights = weights

    def push(self, part: Part, now_s: float) -> None:
        """The part waits from now on."""
        part.where = Where.QUEUE
        part.entered_s = now_s
        self._order.push(part)
        self._arrivals.append(part)
        self.rows += part.good_rows
        self.parts += 1

    def forget(self, part: Part) -> None:
        """The part ended while it waited here."""
        assert part.flow is not None, "only a waiting part can be forgotten"
        part.flow.forget(part)
        self._left(1, part.good_rows)

    def oldest_s(self) -> float:
        """When the first of the waiting parts arrived; `parts` ≥ 1."""
        arrivals = self._arrivals
        while arrivals[0].flow is None:
            arrivals.popleft()
        return arrivals[0].entered_s

    def take(self) -> list[Part]:
        """The next batch in fair order; `parts` ≥ 1."""
        batch = self._order.take(self.window)
        weights, rows = self._order.weights, 0
        for part in batch:
            rows += part.good_rows
            self.finish += part.good_rows / weights[part.work.body.risk_level]
        self._left(len(batch), rows)
        return batch

    def _left(self, parts: int, rows: int) -> None:
        self.rows -= rows
        self.parts -= parts
        if len(self._arrivals) > 2 * self.parts + _compact_min:
            self._arrivals = deque(part for part in self._arrivals if part.flow is not None)


class Queue:
    """The lanes of all model versions; `parts` wait in them altogether."""

    def __init__(self, window_of: Callable[[str], Window], weights: Mapping[int, float]) -> None:
        self.window_of = window_of
        self._weights = weights
        self.parts = 0
        self._lanes: dict[ModelPlan, Lane] = {}
        self._time = 0.0

    def rearrange(self, window_of: Callable[[str], Window], weights: Mapping[int, float]) -> None:
        """Windows by model name and weights by risk level from now on; empty lanes are dropped."""
        self.window_of = window_of
        self._weights = weights
        self._lanes = {plan: lane for plan, lane in self._lanes.items() if lane.parts}
        for plan, lane in self._lanes.items():
            lane.window = window_of(plan.name)
            lane.set_weights(weights)

    def push(self, part: Part, now_s: float) -> None:
        """The part waits for its model version from now on."""
        plan = part.work.plan
        lane = self._lanes.get(plan)
        if lane is None:
            lane = self._lanes[plan] = Lane(plan, self.window_of(plan.name), self._weights)
        if not lane.parts:
            lane.finish = max(lane.finish, self._time)
        lane.push(part, now_s)
        self.parts += 1

    def forget(self, part: Part) -> None:
        """The part ended while it waited."""
        self._lanes[part.work.plan].forget(part)
        self.parts -= 1

    def waiting(self) -> list[Lane]:
        """The lanes that have parts, whose turn it is first."""
        lanes = [lane for lane in self._lanes.values() if lane.parts]
        if len(lanes) > 1:
            lanes.sort(key=lambda lane: lane.finish)
        return lanes

    def take(self, lane: Lane) -> list[Part]:
        """The lane's next batch."""
        self._time = max(self._time, lane.finish)
        batch = lane.take()
        self.parts -= len(batch)
        return batch

    @property
    def rows(self) -> int:
        """Good rows that wait in all lanes."""
        return sum(lane.rows for lane in self._lanes.values())


def weights_of(policies: PolicySet) -> dict[int, float]:
    """The weight of each risk class."""
    policy = policies.find("priority", "*")
    spec = policy.spec if isinstance(policy, PriorityPolicy) else PrioritySpec()
    weights = {**PrioritySpec().weights, **spec.weights}
    return {int(risk): float(weight) for risk, weight in weights.items()}
