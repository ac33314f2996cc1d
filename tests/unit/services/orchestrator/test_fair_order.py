"""The fair order against the fluid schedule that it approximates, with a manual clock.

A fluid server (generalized processor sharing; Parekh, Gallager, "A generalized processor sharing
approach to flow control", 1993) gives each backlogged flow f, at every moment, its share φ_f ÷ Φ of
the service, where φ_f is its class's weight ÷ the class's tenants and Φ the sum over the flows.
Start-time fair queueing keeps, for any two flows that are backlogged throughout,
|S_f ÷ φ_f − S_g ÷ φ_g| ≤ l_f ÷ φ_f + l_g ÷ φ_g, with l the rows of a flow's largest part (Goyal,
Vin, Cheng 1996, theorem 1). Averaged over g with the weights φ_g ÷ Φ this is the bound tested here:
the service of a flow differs from the fluid one by at most l_f + (φ_f ÷ Φ) · Σ_g l_g rows.
"""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.batching import Window
from services.orchestrator.deadlines import NEVER
from services.orchestrator.fairness import FairOrder
from shared.clock import ManualClock
from tests.unit.services.orchestrator.making import part_for, plan_for

PLAN = plan_for()
WEIGHTS = {1: 100.0, 2: 50.0, 3: 10.0}
FlowKey = tuple[int, str]


class Backlog:
    """Flows that always have `depth` parts waiting, of 1 … `largest` rows each."""

    def __init__(
        self, tenants: dict[int, int], seed: int, aging_s: float = NEVER, depth: int = 2
    ) -> None:
        self.order = FairOrder(WEIGHTS, aging_s)
        self.clock = ManualClock()
        self.served: Counter[FlowKey] = Counter()
        self.waited_s: dict[FlowKey, float] = {}
        self._rng = random.Random(seed)
        self.share: dict[FlowKey, float] = {}
        self.largest: dict[FlowKey, int] = {}
        for risk, count in tenants.items():
            for number in range(count):
                key = (risk, f"t{number}")
                self.share[key] = WEIGHTS[risk] / count
                self.largest[key] = self._rng.randrange(1, 9)
                for _ in range(depth):
                    self._push(key)

    def _push(self, key: FlowKey) -> None:
        rows = self._rng.randint(1, self.largest[key])
        part = part_for(PLAN, rows, risk_level=key[0], tenant_id=key[1])
        part.entered_s = self.clock.monotonic()
        self.order.push(part)

    def serve(self, rows_max: int, row_s: float = 1e-3) -> None:
        """One batch leaves, takes its time, and each flow that gave gets as much anew."""
        now_s = self.clock.monotonic()
        for part in self.order.take(Window(0.01, rows_max), now_s):
            key = (part.work.body.risk_level, part.work.body.tenant_id)
            self.served[key] += part.rows
            self.waited_s[key] = now_s - part.entered_s
            self.clock.advance(part.rows * row_s)
            self._push(key)

    def distance_rows(self, key: FlowKey) -> tuple[float, float]:
        """How far the flow's service is from the fluid one, and how far it may be."""
        part_of_all = self.share[key] / sum(self.share.values())
        fluid = sum(self.served.values()) * part_of_all
        bound = self.largest[key] + part_of_all * sum(self.largest.values())
        return abs(self.served[key] - fluid), bound


TENANTS = st.fixed_dictionaries({1: st.integers(0, 4), 2: st.integers(0, 4), 3: st.integers(1, 4)})


@given(TENANTS, st.integers(0, 2**32 - 1))
def test_service_stays_within_the_bound_of_the_fluid_schedule(
    tenants: dict[int, int], seed: int
) -> None:
    """Whatever the tenants and sizes, after every part: never ahead of nor behind its share by
    more than the bound. Parts leave one by one, so that every moment is looked at."""
    backlog = Backlog(tenants, seed)
    for _ in range(300):
        backlog.serve(rows_max=1)
        for key in backlog.share:
            distance, bound = backlog.distance_rows(key)
            assert distance <= bound + 1e-6, (key, distance, bound)


@given(TENANTS, st.integers(0, 2**32 - 1), st.integers(2, 32))
def test_batches_keep_the_bound_too(tenants: dict[int, int], seed: int, rows_max: int) -> None:
    """A batch is filled in the same order, so at its end the same holds, whatever its size."""
    backlog = Backlog(tenants, seed, depth=33)
    for _ in range(30):
        backlog.serve(rows_max)
        for key in backlog.share:
            distance, bound = backlog.distance_rows(key)
            assert distance <= bound + 1e-6, (key, distance, bound)


@given(st.integers(1, 50), st.integers(0, 2**32 - 1))
def test_the_lowest_class_waits_no_longer_than_its_share_says(tenants: int, seed: int) -> None:
    """One flow of class 3 among `tenants` busy ones of class 1: two parts of it are at most
    (its rows + the bound) ÷ its share of the rows apart."""
    backlog = Backlog({1: tenants, 3: 1}, seed)
    key = (3, "t0")
    share = backlog.share[key] / sum(backlog.share.values())
    _, bound = backlog.distance_rows(key)
    gap, seen = 0, 0
    for _ in range(600):
        backlog.serve(rows_max=1)
        total = sum(backlog.served.values())
        if backlog.served[key] > seen:
            gap, seen = total, backlog.served[key]
        assert total - gap <= (backlog.largest[key] + 2 * bound) / share


def test_what_has_waited_for_aging_s_is_served_at_the_next_class_s_weight() -> None:
    """Class 3, all of whose parts waited seconds, gets more than twice its 10 against 100, and
    never more than the highest class."""
    young, aged = (Backlog({1: 1, 3: 1}, 7, aging_s) for aging_s in (NEVER, 1.0))
    for backlog in (young, aged):
        for _ in range(2_000):
            backlog.serve(rows_max=1, row_s=1.0)
    share = [backlog.served[3, "t0"] / sum(backlog.served.values()) for backlog in (young, aged)]
    assert abs(share[0] - 10 / 110) < 0.02
    assert 2 * share[0] < share[1] < 0.51


def test_service_on_a_replica_of_its_own_does_not_put_newcomers_behind() -> None:
    """Class 1 served apart, far ahead in time, while class 3 waits: a new tenant of class 3 starts
    where class 3 is, not where class 1 is."""
    order = FairOrder({1: 1.0, 2: 50.0, 3: 100.0})
    window = Window(0.01, 1)
    order.push(part_for(PLAN, risk_level=3, tenant_id="old"))
    for _ in range(50):
        order.push(part_for(PLAN, risk_level=1))
        assert len(order.take(window, 0.0, order.classes[:1], is_apart=True)) == 1
    for _ in range(10):
        order.push(part_for(PLAN, risk_level=3, tenant_id="old"))
    order.push(part_for(PLAN, risk_level=3, tenant_id="new"))
    served = [order.take(window, 0.0)[0].work.body.tenant_id for _ in range(3)]
    assert "new" in served


def test_only_the_classes_that_were_asked_for_are_taken() -> None:
    """A reserved replica's batch has no other class in it, and the others wait on."""
    order = FairOrder(WEIGHTS)
    for risk in (3, 1, 2, 1):
        order.push(part_for(PLAN, risk_level=risk))
    first = order.take(Window(0.01, 32), 0.0, order.classes[:1], is_apart=True)
    assert [part.work.body.risk_level for part in first] == [1, 1]
    assert order.rows == 2
    assert [each.rows for each in order.classes] == [0, 1, 1]
