"""The order in which parts leave."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from contracts.policies import PriorityPolicy, PrioritySpec
from services.orchestrator.batching import Window
from services.orchestrator.config import flows_idle_max
from services.orchestrator.fairness import FairOrder
from services.orchestrator.queue import Queue, weights_of
from services.orchestrator.request import Part
from tests.unit.services.orchestrator.making import contract, part_for, plan_for, policy_set

PLAN = plan_for()
OTHER = plan_for(contract(name="other"))
WEIGHTS = {1: 100.0, 2: 50.0, 3: 10.0}


def queue_of(rows_max: int = 32) -> Queue:
    """An empty queue with the default weights."""
    return Queue(lambda _model: Window(0.01, rows_max), WEIGHTS)


def take(queue: Queue) -> list[Part]:
    """The next batch of the lane whose turn it is."""
    return queue.take(queue.waiting()[0], 100.0)


def test_one_tenant_leaves_in_order_of_arrival() -> None:
    """Equal deadlines: first come, first served, 32 rows a batch."""
    queue = queue_of()
    parts = [part_for(PLAN) for _ in range(40)]
    for part in parts:
        queue.push(part, 100.0)
    assert take(queue) == parts[:32]
    assert take(queue) == parts[32:]
    assert queue.waiting() == []


def test_inside_a_tenant_the_earliest_deadline_goes_first() -> None:
    """A late request with little time left overtakes."""
    queue = queue_of(rows_max=1)
    slow, quick, last = (part_for(PLAN, deadline_s=at) for at in (110.0, 101.0, 110.0))
    for part in (slow, quick, last):
        queue.push(part, 100.0)
    assert [take(queue)[0] for _ in range(3)] == [quick, slow, last]


def test_risk_classes_share_by_weight() -> None:
    """100 : 50 : 10 while all three have something waiting."""
    queue = queue_of(rows_max=1)
    for _ in range(200):
        for risk in (1, 2, 3):
            queue.push(part_for(PLAN, risk_level=risk), 100.0)
    served = Counter(take(queue)[0].work.body.risk_level for _ in range(160))
    assert abs(served[1] - 100) <= 2
    assert abs(served[2] - 50) <= 2
    assert abs(served[3] - 10) <= 2


def test_no_tenant_starves_another() -> None:
    """A tenant with 1,000 waiting does not delay the single request of another one."""
    queue = queue_of(rows_max=1)
    for _ in range(1_000):
        queue.push(part_for(PLAN, tenant_id="bulk"), 100.0)
    for _ in range(10):
        take(queue)
    queue.push(part_for(PLAN, tenant_id="small"), 100.0)
    served = [take(queue)[0].work.body.tenant_id for _ in range(2)]
    assert "small" in served


def test_a_tenant_that_sends_one_large_request_at_a_time_gets_no_more_than_its_half() -> None:
    """Being idle between requests does not reset what a tenant has used."""
    queue = queue_of(rows_max=32)
    for _ in range(600):
        queue.push(part_for(PLAN, tenant_id="steady"), 100.0)
    queue.push(part_for(PLAN, 32, tenant_id="lumpy"), 100.0)
    rows: Counter[str] = Counter()
    for _ in range(12):
        for part in take(queue):
            rows[part.work.body.tenant_id] += part.rows
            if part.work.body.tenant_id == "lumpy":
                queue.push(part_for(PLAN, 32, tenant_id="lumpy"), 100.0)
    assert abs(rows["lumpy"] - rows["steady"]) <= 64


def test_lanes_take_turns_by_the_weight_of_what_they_serve() -> None:
    """Urgent requests of one model get ten times the turns of another's bulk."""
    queue = queue_of(rows_max=1)
    for _ in range(300):
        queue.push(part_for(PLAN, risk_level=1), 100.0)
        queue.push(part_for(OTHER, risk_level=3), 100.0)
    served = Counter(take(queue)[0].work.plan.name for _ in range(110))
    assert abs(served["other"] - 10) <= 1


def test_a_batch_stops_before_the_part_that_does_not_fit() -> None:
    """Nothing overtakes it: the order is kept."""
    queue = queue_of(rows_max=32)
    parts = [part_for(PLAN, rows) for rows in (20, 20, 1)]
    for part in parts:
        queue.push(part, 100.0)
    assert take(queue) == parts[:1]
    assert take(queue) == parts[1:]


def test_an_empty_batch_takes_any_part() -> None:
    """A part that was made under a larger window, or a long row, does not wait for ever."""
    queue = queue_of(rows_max=32)
    parts = [part_for(PLAN, 40), part_for(PLAN), part_for(PLAN)]
    parts[1].bytes = 2 * queue.window_of("tiny").bytes_max
    for part in parts:
        queue.push(part, 100.0)
    assert [take(queue) for _ in range(3)] == [[part] for part in parts]


def test_100_queued_90_leave() -> None:
    """The ten that stay are served; rows and the age of the oldest follow."""
    queue = queue_of()
    parts = [part_for(PLAN) for _ in range(100)]
    for index, part in enumerate(parts):
        queue.push(part, 100.0 + index)
    stay = parts[90:]
    for part in parts[:90]:
        queue.forget(part)
    assert queue.rows == 10
    assert queue.waiting()[0].oldest_s() == 190.0
    assert take(queue) == stay
    assert all(part.flow is None for part in parts)


def test_weights_follow_the_policy_and_windows_the_model() -> None:
    """A new policy set changes lanes that have parts; an unnamed class keeps its default."""
    spec = PrioritySpec(weights={"3": 200})
    weights = weights_of(policy_set(PriorityPolicy(spec=spec)))
    assert weights == {1: 100.0, 2: 50.0, 3: 200.0}
    queue = queue_of(rows_max=1)
    for _ in range(100):
        queue.push(part_for(PLAN, risk_level=1), 100.0)
        queue.push(part_for(PLAN, risk_level=3), 100.0)
    queue.rearrange(lambda _model: Window(0.0, 2), weights)
    served = Counter(part.work.body.risk_level for _ in range(30) for part in take(queue))
    assert served[3] > 1.8 * served[1]


def test_idle_tenants_are_forgotten() -> None:
    """A tenant name made up for each request does not grow the process."""
    order = FairOrder(WEIGHTS)
    for number in range(3 * flows_idle_max):
        order.push(part_for(PLAN, tenant_id=f"t{number}"))
        assert len(order.take(Window(0.01, 32), 100.0)) == 1
    assert len(order._flows) <= flows_idle_max
    assert all(each.heap == [] for each in order.classes)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_every_part_leaves_once_or_is_forgotten_once(seed: int, rows_max: int) -> None:
    """Conservation: whatever is pushed, taken and forgotten in any order, counts agree."""
    rng = random.Random(seed)
    queue = queue_of(rows_max)
    waiting: set[Part] = set()
    for _ in range(rng.randrange(1, 120)):
        choice = rng.random()
        if choice < 0.6 or not waiting:
            part = part_for(
                rng.choice((PLAN, OTHER)),
                rng.randrange(1, 9),
                deadline_s=rng.choice((101.0, 105.0, 120.0)),
                tenant_id=rng.choice("abc"),
                risk_level=rng.randrange(1, 4),
            )
            queue.push(part, 100.0)
            waiting.add(part)
        elif choice < 0.8:
            part = rng.choice(sorted(waiting, key=id))
            queue.forget(part)
            waiting.remove(part)
        else:
            batch = take(queue)
            assert batch
            rows = sum(part.rows for part in batch)
            assert rows <= rows_max or len(batch) == 1
            for part in batch:
                waiting.remove(part)
        assert queue.rows == sum(part.rows for part in waiting)
    while queue.waiting():
        for part in take(queue):
            waiting.remove(part)
    assert not waiting
