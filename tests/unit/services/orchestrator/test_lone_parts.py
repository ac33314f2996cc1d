"""Parts that go alone: they neither wait for others nor hold them up."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.batching import Window
from services.orchestrator.fairness import FairOrder
from services.orchestrator.request import Part
from tests.unit.services.orchestrator.making import part_for, plan_for

PLAN = plan_for()
WEIGHTS = {1: 100.0, 2: 50.0, 3: 10.0}
WINDOW = Window(0.01, 4, tokens_max=100, tokens_split=50)


def part(tokens: int, **body: Any) -> Part:
    """One row of so many tokens, over 50 alone."""
    made = part_for(PLAN, 1, **body)
    made.tokens = made.longest = tokens
    made.is_alone = tokens > WINDOW.tokens_split
    made.charge = max(1, -(-tokens * WINDOW.rows_max // WINDOW.tokens_max))
    return made


def batches(order: FairOrder) -> list[list[int]]:
    """The tokens of each batch until nothing waits."""
    found = []
    while order.parts:
        found.append([one.tokens for one in order.take(WINDOW, 0.0)])
    return found


def order_of(*tokens: int) -> FairOrder:
    """Parts of one tenant in this order."""
    order = FairOrder(WEIGHTS)
    for count in tokens:
        order.push(part(count))
    return order


def test_a_long_part_does_not_hold_up_the_short_ones_behind_it() -> None:
    """They fill the batch that would have ended at it; the long one is next, by itself."""
    assert batches(order_of(1, 60, 2, 3, 4)) == [[1, 2, 3, 4], [60]]


def test_a_long_part_waits_for_one_batch_of_its_tenant_at_most() -> None:
    """Long and short ones take turns, however many of either wait."""
    order = order_of(*[60, 70, 80], *range(1, 13))
    assert batches(order) == [[1, 2, 3, 4], [60], [5, 6, 7, 8], [70], [9, 10, 11, 12], [80]]


def test_short_parts_that_keep_coming_do_not_starve_a_long_one() -> None:
    """Each batch could be filled without it, with earlier deadlines besides."""
    order = order_of(60)
    for batch in range(3):
        for _ in range(4):
            early = part(1)
            early.work.deadline_s = 101.0
            order.push(early)
        if order.take(WINDOW, 0.0)[0].is_alone:
            assert batch == 1
            return
    raise AssertionError("it never left")


def test_another_tenants_long_part_is_left_out_of_a_batch_and_goes_next() -> None:
    """Its tenant keeps its place in the order."""
    order = FairOrder(WEIGHTS)
    order.push(part(1, tenant_id="a"))
    order.push(part(60, tenant_id="b"))
    order.push(part(2, tenant_id="c"))
    assert batches(order) == [[1, 2], [60]]


def test_padding_is_what_fills_a_batch() -> None:
    """Three rows of 30 are 90 tokens, a fourth would make 120; one of 40 beside two of 30 too."""
    assert batches(order_of(30, 30, 30, 30)) == [[30, 30, 30], [30]]
    assert batches(order_of(30, 30, 40)) == [[30, 30], [40]]


def test_a_long_part_that_left_is_forgotten() -> None:
    """Cancelled while it waited: nothing of it is left, alone or beside others."""
    order = FairOrder(WEIGHTS)
    long, short = part(60), part(1)
    order.push(long)
    order.push(short)
    order.forget(long)
    assert order.rows == 1
    assert batches(order) == [[1]]
    order.push(again := part(60))
    order.forget(again)
    assert order.take(WINDOW, 0.0) == []
    assert (order.rows, order.parts) == (0, 0)


def test_many_long_parts_that_left_are_dropped() -> None:
    """Dead entries do not outnumber the living for long."""
    order = FairOrder(WEIGHTS)
    parts = [part(60) for _ in range(1_000)]
    for one in parts:
        order.push(one)
    for one in parts[:999]:
        order.forget(one)
    flow = parts[999].flow
    assert flow is not None
    assert len(flow.lone) < 200
    assert batches(order) == [[60]]


@given(st.integers(51, 400), st.integers(1, 50))
def test_a_tenant_of_long_parts_has_its_share_and_no_more(long: int, short: int) -> None:
    """Beside a tenant of short ones, both always waiting: what each was charged differs by no more
    than the largest part and a batch that leaves the other out."""
    order = FairOrder(WEIGHTS)
    served = {"long": 0, "short": 0}
    for _ in range(WINDOW.rows_max + 1):
        order.push(part(long, tenant_id="long"))
        order.push(part(short, tenant_id="short"))
    for _ in range(300):
        for taken in order.take(WINDOW, 0.0):
            name = taken.work.body.tenant_id
            served[name] += taken.charge
            order.push(part(taken.tokens, tenant_id=name))
        bound = part(long).charge + 2 * WINDOW.rows_max
        assert abs(served["long"] - served["short"]) <= bound, served
    assert min(served.values()) > 0


@given(st.integers(0, 2**32 - 1))
def test_every_part_leaves_once_and_no_batch_breaks_a_limit(seed: int) -> None:
    """Random pushes, forgets and takes over tenants and classes; sums come back to nothing."""
    rng = random.Random(seed)
    order = FairOrder(WEIGHTS)
    waiting: dict[int, Part] = {}
    for _ in range(200):
        what = rng.random()
        if what < 0.6:
            new = part(
                rng.choice((1, 5, 30, 60, 150)),
                tenant_id=rng.choice("ab"),
                risk_level=rng.randint(1, 3),
            )
            order.push(new)
            waiting[id(new)] = new
        elif what < 0.7 and waiting:
            order.forget(waiting.pop(rng.choice(list(waiting))))
        else:
            taken = order.take(WINDOW, 0.0)
            assert bool(taken) == bool(waiting)
            for one in taken:
                del waiting[id(one)]
            if len(taken) > 1:
                assert not any(one.is_alone for one in taken)
                assert len(taken) * max(one.tokens for one in taken) <= WINDOW.tokens_max
        assert order.parts == len(waiting)
        assert order.rows == sum(one.charge for one in waiting.values())
    while order.parts:
        order.take(WINDOW, 0.0)
    assert order.rows == 0
    assert [each.rows for each in order.classes] == [0, 0, 0]
