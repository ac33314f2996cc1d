"""What is refused at the door, with a manual clock: the real queue in front of a server of known
cost."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import REASONS, MeshError
from contracts.policies import SlaPolicy, SlaSpec
from services.orchestrator.batching import Window
from services.orchestrator.execution import Batch
from services.orchestrator.fairness import RiskClass
from services.orchestrator.forecast import Forecast
from services.orchestrator.queue import Queue
from services.orchestrator.replica import Replica
from services.orchestrator.request import Part
from services.orchestrator.reserve import SHARED
from services.orchestrator.shedding import Pace, judge, rows_before
from shared.clock import ManualClock
from tests.unit.services.orchestrator.making import executed, part_for, plan_for, policy_set

PLAN = plan_for()
WEIGHTS = {1: 100.0, 2: 50.0, 3: 10.0}
BATCH_S, ROW_S, ROWS_MAX = 5e-3, 0.2e-3, 32
CAPACITY = ROWS_MAX / (BATCH_S + ROWS_MAX * ROW_S)
PACE = Pace(batch_s=0.01, rows_max=32, replicas=1, busy_s=0.01, overhead_s=0.001)


class Server:
    """One replica that computes `sleepy`'s batches one after the other, from the real queue."""

    def __init__(self, sla_ms: float = 100.0) -> None:
        self.clock = ManualClock()
        self.clock.advance(100.0)
        self.queue = Queue(lambda _model: Window(0.01, ROWS_MAX), WEIGHTS)
        self.replica = Replica(0, Path("none"), self.clock, lambda: None)
        self.forecast = Forecast(self.queue, lambda _plan: {SHARED: [self.replica]})
        sla = SlaPolicy(name="*", spec=SlaSpec(p99_ms=sla_ms, shed_factor=1.0))
        self.forecast.apply(policy_set(sla), [PLAN])
        self.late = 0
        self.sent: Counter[int] = Counter()
        self.refused: Counter[int] = Counter()
        self.waits_s: dict[int, list[float]] = {1: [], 2: [], 3: []}
        for rows in (*range(1, 33), 32):
            self._learn([part_for(PLAN, rows)], BATCH_S + ROW_S * rows)

    @property
    def done(self) -> int:
        """Requests computed."""
        return sum(len(row) for row in self.waits_s.values())

    def _learn(self, parts: list[Part], forward_s: float) -> None:
        batch = Batch(PLAN, parts, self.clock.monotonic())
        batch.sent_s = self.clock.monotonic()
        batch.answered_s = batch.sent_s + forward_s
        answer = executed(batch.rows, forward_us=round(forward_s * 1e6), wait_us=0)
        self.forecast.learn(batch, answer)

    def offer(self, risk: int, left_s: float = 5.0, tenant_id: str = "t", rows: int = 1) -> bool:
        """A request arrives; whether it was admitted."""
        now_s = self.clock.monotonic()
        part = part_for(PLAN, rows, deadline_s=now_s + left_s, risk_level=risk, tenant_id=tenant_id)
        self.sent[risk] += 1
        try:
            self.forecast.admit(PLAN, part.work.body, rows, now_s + left_s, now_s)
        except MeshError as error:
            check_refusal(error)
            self.refused[risk] += 1
            return False
        self.queue.push(part, now_s)
        return True

    def run_batch(self) -> float:
        """Compute the next batch; how long it took (0: nothing waits)."""
        if not self.queue.parts:
            return 0.0
        now_s = self.clock.monotonic()
        parts = self.queue.take(self.queue.waiting()[0], now_s)
        took_s = BATCH_S + ROW_S * sum(part.rows for part in parts)
        self.replica.free_s = now_s + took_s
        for part in parts:
            self.waits_s[part.work.body.risk_level].append(now_s + took_s - part.entered_s)
            self.late += now_s + took_s > part.work.deadline_s
        self._learn(parts, took_s)
        return took_s

    def run(self, rates: dict[int, float], seconds: float, seed: int, **options: Any) -> None:
        """Random arrivals at these rates by risk class, for so long."""
        rng = random.Random(seed)
        begun_s = free_s = self.clock.monotonic()
        due = {risk: begun_s + rng.expovariate(rate) for risk, rate in rates.items()}
        while (now_s := self.clock.monotonic()) < begun_s + seconds:
            if now_s >= free_s and self.queue.parts:
                free_s = now_s + self.run_batch()
            risk = min(due, key=lambda each: due[each])
            event_s = min(due[risk], free_s) if self.queue.parts else due[risk]
            if event_s > now_s:
                self.clock.advance(max(1e-6, event_s - now_s))
            if event_s == due[risk]:
                self.offer(risk, tenant_id=rng.choice("abc"), **options)
                due[risk] += rng.expovariate(rates[risk])


def check_refusal(error: MeshError) -> None:
    """OVERLOADED with a reason from the closed list and a hint."""
    assert error.name == "OVERLOADED"
    assert error.details is not None
    assert error.details["reason"] in REASONS
    assert error.retry_after_ms is not None
    assert error.retry_after_ms > 0


def waiting(*rows: int) -> list[RiskClass]:
    """Classes 1, 2, 3 with so many rows each."""
    classes = [RiskClass(risk, WEIGHTS[risk]) for risk in (1, 2, 3)]
    for each, count in zip(classes, rows, strict=True):
        each.rows = count
    return classes


def test_an_idle_runtime_refuses_nothing() -> None:
    """Even with less time left than the cost says: the cost may have been learnt wrong."""
    assert Server().offer(2, left_s=0.001)


def test_a_cost_that_was_learnt_too_high_is_unlearnt() -> None:
    """After a slow start, in which all batches took a second, requests come through again."""
    server = Server()
    for _ in range(20):
        server._learn([part_for(PLAN)], 1.0)
    for _ in range(300):
        server.offer(2)
        server.clock.advance(1.0)
        server.run_batch()
    for _ in range(100):
        assert server.offer(2)


def test_what_cannot_make_its_deadline_is_refused_at_once() -> None:
    """200 rows wait: 30 ms are not enough, a second is."""
    server = Server(sla_ms=10_000.0)
    for _ in range(200):
        server.offer(2)
    assert not server.offer(2, left_s=0.03, tenant_id="other", rows=320)
    assert server.offer(2, left_s=1.0)


def test_an_earlier_deadline_overtakes_in_the_prediction_as_it_does_in_the_queue() -> None:
    """Of the 200 rows of its own tenant none goes before a request with less time left."""
    server = Server(sla_ms=10_000.0)
    for _ in range(200):
        server.offer(2, left_s=5.0)
    server.run_batch()
    assert server.offer(2, left_s=0.045)


def test_two_batches_before_it_are_no_reason() -> None:
    """A model of 2 s a batch under an SLA of 150 ms: what a busy runtime always has is waited
    for."""
    assert judge(Pace(2.0, 32, 1, 2.0, 0.0), 32.0, 1, 10.0, 0.15, "slow 1") is None
    error = judge(Pace(2.0, 32, 1, 2.0, 0.0), 33.0, 1, 10.0, 0.15, "slow 1")
    assert error is not None
    assert error.details == {"reason": "sla"}


def test_a_large_request_is_not_refused_for_what_it_costs_itself() -> None:
    """4,096 rows take 1.3 s; the promise is about waiting."""
    assert judge(PACE, 0.0, 4_096, 5.0, 0.15, "m 1") is None


def test_500_requests_with_a_deadline_of_50_ms_then_100_normal_ones_are_all_answered() -> None:
    """The hopeless ones are refused or leave, and nothing of them stands before the others."""
    server = Server()
    for _ in range(500):
        server.offer(2, left_s=0.05)
    admitted = server.sent[2] - server.refused[2]
    assert 0 < admitted < 250
    while server.queue.parts:
        server.clock.advance(server.run_batch())
    assert server.late <= 32
    for _ in range(100):
        assert server.offer(2)
        if server.queue.rows >= ROWS_MAX:
            server.clock.advance(server.run_batch())


@settings(max_examples=4, deadline=None)
@given(st.floats(1.5, 4.0), st.integers(0, 2**32 - 1))
def test_under_overload_the_runtime_stays_full_and_the_promise_is_kept(
    times: float, seed: int
) -> None:
    """1.5 to 4 × the capacity in class 2: what is admitted is computed within the SLA and two
    batches, and batches are full."""
    server = Server(sla_ms=100.0)
    server.run({2: times * CAPACITY}, 0.6, seed)
    ordered = sorted(server.waits_s[2])
    assert ordered[int(len(ordered) * 0.99)] <= 0.1 + 3 * (BATCH_S + ROWS_MAX * ROW_S)
    assert len(ordered) >= 0.9 * 0.6 * CAPACITY


@settings(max_examples=4, deadline=None)
@given(st.floats(0.05, 0.5), st.floats(0.2, 3.0), st.floats(0.2, 3.0), st.integers(0, 2**32 - 1))
def test_the_highest_class_loses_nothing_while_it_fits(
    first: float, second: float, third: float, seed: int
) -> None:
    """Class 1 at up to half of the capacity (its share is 100 of 160), whatever the others send:
    none of its requests is refused, and its p99 stays below six batches."""
    server = Server(sla_ms=100.0)
    rates = {1: first * CAPACITY, 2: second * CAPACITY, 3: third * CAPACITY}
    server.run(rates, 0.6, seed)
    assert server.refused[1] == 0
    ordered = sorted(server.waits_s[1])
    assert ordered[int(len(ordered) * 0.99)] <= 6 * (BATCH_S + ROWS_MAX * ROW_S)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_deadlines_that_were_promised_are_kept(seed: int) -> None:
    """3 × the capacity with deadlines of 60 ms: once the classes' shares are known, of what is
    admitted at most 3 % comes late."""
    server = Server(sla_ms=10_000.0)
    rates = {2: 2.0 * CAPACITY, 3: CAPACITY}
    server.run(rates, 0.3, seed, left_s=0.06)
    late, done = server.late, server.done
    server.run(rates, 0.3, seed, left_s=0.06)
    assert server.late - late <= 0.03 * (server.done - done)
    assert server.done - done >= 0.9 * 0.3 * CAPACITY


@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.integers(1, 20))
def test_rows_before_a_request_grow_with_what_waits_and_never_exceed_it(
    first: int, second: int, third: int, tenants: int
) -> None:
    """At least its own tenant's rows, at most all that waits and as much of its class again."""
    classes = waiting(first, second, third)
    for index, mine in enumerate(classes):
        others = [each for each in classes if each is not mine]
        own = mine.rows / tenants
        before = rows_before(own, tenants, mine, others, 0.0)
        most = first + second + third + mine.rows
        assert own - 1e-6 <= before <= most + 1e-6
        classes[index].rows += 10
        assert rows_before(own, tenants, mine, others, 0.0) >= before
        classes[index].rows -= 10


def test_other_classes_recent_use_counts_up_to_the_weights() -> None:
    """Class 3 behind 100 rows of its own: 200 when the others use half of the runtimes, 1,600
    when they use all of it, because a sixteenth is its share."""
    one, two, three = waiting(0, 0, 100)
    for used, expected in ((0.0, 100.0), (0.5, 200.0), (1.0, 1_600.0)):
        assert rows_before(100.0, 1, three, [one, two], used) == pytest.approx(expected)
