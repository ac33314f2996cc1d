"""What waits for a runtime: a lane for each model version.

Lanes take turns in proportion to the weights of what they serve; inside a lane see `fairness`.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from contracts.policies import PolicySet, PriorityPolicy, PrioritySpec
from services.orchestrator.batching import Window
from services.orchestrator.deadlines import NEVER
from services.orchestrator.fairness import FairOrder, RiskClass
from services.orchestrator.plan import ModelPlan
from services.orchestrator.request import Part, Where

_compact_min = 64


class Lane(FairOrder):
    """What waits for one model version. `turn` is where its last service ended, on the scale of
    all lanes; `is_kept_back`: its next batch could have left, but its runtime is busy for longer.
    """

    def __init__(
        self, plan: ModelPlan, window: Window, weights: Mapping[int, float], aging_s: float
    ) -> None:
        super().__init__(weights, aging_s)
        self.plan = plan
        self.window = window
        self.turn = 0.0
        self.is_kept_back = False
        self.arrivals: deque[Part] = deque()

    def oldest_s(self) -> float:
        """When the first of the waiting parts arrived; `parts` ≥ 1."""
        arrivals = self.arrivals
        while arrivals[0].flow is None:
            arrivals.popleft()
        return arrivals[0].entered_s


class Queue:
    """The lanes of all model versions; `parts` wait in them altogether."""

    def __init__(
        self,
        window_of: Callable[[str], Window],
        weights: Mapping[int, float],
        aging_s: float = NEVER,
    ) -> None:
        self.window_of = window_of
        self._weights = weights
        self._aging_s = aging_s
        self.parts = 0
        self._lanes: dict[ModelPlan, Lane] = {}
        self._time = 0.0

    def rearrange(
        self,
        window_of: Callable[[str], Window],
        weights: Mapping[int, float],
        aging_s: float = NEVER,
    ) -> None:
        """Windows by model name and weights by risk level from now on; empty lanes are dropped."""
        self.window_of = window_of
        self._weights = weights
        self._aging_s = aging_s
        self._lanes = {plan: lane for plan, lane in self._lanes.items() if lane.parts}
        for plan, lane in self._lanes.items():
            lane.window = window_of(plan.name)
            lane.weigh(weights, aging_s)

    def push(self, part: Part, now_s: float) -> None:
        """The part waits for its model version from now on."""
        plan = part.work.plan
        lane = self._lanes.get(plan)
        if lane is None:
            window = self.window_of(plan.name)
            lane = self._lanes[plan] = Lane(plan, window, self._weights, self._aging_s)
        if not lane.parts:
            lane.turn = max(lane.turn, self._time)
            lane.arrivals.clear()
            lane.is_kept_back = False  # those that were have ended: nothing is learnt from them
        part.where = Where.QUEUE
        part.entered_s = now_s
        lane.push(part)
        lane.arrivals.append(part)
        self.parts += 1

    def forget(self, part: Part) -> None:
        """The part ended while it waited."""
        lane = self._lanes[part.work.plan]
        lane.forget(part)
        self.parts -= 1
        self._tidy(lane)

    def waiting(self) -> list[Lane]:
        """The lanes that have parts, whose turn it is first."""
        lanes = [lane for lane in self._lanes.values() if lane.parts]
        if len(lanes) > 1:
            lanes.sort(key=lambda lane: lane.turn)
        return lanes

    def lane_of(self, plan: ModelPlan) -> Lane | None:
        """What waits for this version, if anything did lately."""
        return self._lanes.get(plan)

    def take(
        self,
        lane: Lane,
        now_s: float,
        only: Sequence[RiskClass] = (),
        *,
        is_apart: bool = False,
    ) -> list[Part]:
        """The lane's next batch, see `FairOrder.take`."""
        before = lane.served
        batch = lane.take(lane.window, now_s, only, is_apart=is_apart)
        self._time = max(self._time, lane.turn)
        lane.turn += lane.served - before
        self.parts -= len(batch)
        self._tidy(lane)
        return batch

    def _tidy(self, lane: Lane) -> None:
        """Arrivals that left are dropped when they outnumber those that wait, and when none does:
        what is kept alive longer than its request makes the next ones use new memory."""
        if not lane.parts:
            lane.arrivals.clear()
        elif len(lane.arrivals) > 2 * lane.parts + _compact_min:
            lane.arrivals = deque(part for part in lane.arrivals if part.flow is not None)

    @property
    def rows(self) -> int:
        """Good rows that wait in all lanes."""
        return sum(lane.rows for lane in self._lanes.values())


def priority_of(policies: PolicySet) -> PrioritySpec:
    """The priority policy in force, or the built-in one."""
    policy = policies.find("priority", "*")
    return policy.spec if isinstance(policy, PriorityPolicy) else PrioritySpec()


def weights_of(policies: PolicySet) -> dict[int, float]:
    """The weight of each risk class; one that is not named has its built-in weight."""
    weights = {**PrioritySpec().weights, **priority_of(policies).weights}
    return {int(risk): float(weight) for risk, weight in weights.items()}
