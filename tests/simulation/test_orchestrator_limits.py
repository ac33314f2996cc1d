"""Limits of load through the whole orchestrator, with fake neighbours: what is refused, with which
reason, and who is served where."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from contracts.errors import REASONS, MeshError
from contracts.execution import Execute, Executed
from contracts.policies import (
    BatchingPolicy,
    BatchingSpec,
    BreakerPolicy,
    BreakerSpec,
    LimitsPolicy,
    LimitsSpec,
    PriorityPolicy,
    PrioritySpec,
    SlaPolicy,
    SlaSpec,
)
from services.orchestrator.config import cost_batches_min, retry_memory_s, retry_parts_min
from tests.simulation.orchestrator_mesh import Mesh, compute, failing, serving


@pytest.fixture
def mesh() -> Mesh:
    """One runtime."""
    return Mesh()


@pytest.fixture
async def two() -> AsyncIterator[Mesh]:
    """Two runtimes, one reserved for class 1, both held."""
    mesh = Mesh(runtimes=2)
    mesh.write_policies(PriorityPolicy(spec=PrioritySpec(reserved_replicas={"1": 1})))
    async with serving(mesh):
        for runtime in mesh.runtimes:
            runtime.is_held = True
        yield mesh
        for runtime in mesh.runtimes:
            runtime.release()


def slow(batch: Execute) -> Executed:
    """Says that it computed for 50 ms."""
    return msgspec.structs.replace(compute(batch), forward_us=50_000)


async def learn(mesh: Mesh) -> None:
    """Enough batches for a cost."""
    for _ in range(cost_batches_min):
        await mesh.infer()


def start(mesh: Mesh, count: int, **options: Any) -> list[asyncio.Task[Any]]:
    """Requests in flight."""
    return [asyncio.create_task(mesh.infer(float(n), **options)) for n in range(count)]


async def test_a_rate_of_a_tenant_refuses_with_reason_and_hint(mesh: Mesh) -> None:
    """Two pass, the third is told when; another tenant is not concerned."""
    mesh.write_policies(LimitsPolicy(name="t", spec=LimitsSpec(requests_per_s=0.1, burst=2)))
    async with serving(mesh):
        await mesh.infer(tenant_id="t")
        await mesh.infer(tenant_id="t")
        with failing("QUOTA_EXCEEDED") as failed:
            await mesh.infer(tenant_id="t")
        assert failed.error.details == {"reason": "rate", "tenant": "t"}
        assert 9_000 < (failed.error.retry_after_ms or 0) <= 10_000
        await mesh.infer(tenant_id="other")
        found = await mesh.conserved()
        assert found["infer_refused"] == 1


async def test_a_daily_quota_counts_answered_rows_and_survives_the_process(mesh: Mesh) -> None:
    """A failed request is given back; the next process of the same home counts on."""
    mesh.write_policies(LimitsPolicy(name="t", spec=LimitsSpec(tokens_per_day=5)))
    async with serving(mesh):
        mesh.runtime.error = MeshError("FORWARD_FAILED", "it raised")
        with failing("FORWARD_FAILED"):
            await mesh.infer(rows=5, tenant_id="t")
        mesh.runtime.error = None
        await mesh.infer(rows=4, tenant_id="t")
        with failing("QUOTA_EXCEEDED") as failed:
            await mesh.infer(rows=2, tenant_id="t")
        assert failed.error.details == {"reason": "daily_quota", "tenant": "t"}
        quotas = mesh.service._quotas
        quotas.write()
        mesh.service.pipeline.allowances.used.clear()
        mesh.service.pipeline.allowances.day = 0
        quotas.read()
        await mesh.infer(rows=1, tenant_id="t")
        with failing("QUOTA_EXCEEDED"):
            await mesh.infer(rows=1, tenant_id="t")


async def test_what_would_wait_longer_than_the_sla_is_refused_and_counted(mesh: Mesh) -> None:
    """Batches of one row at 50 ms under an SLA of 100: what stands behind some is refused with the
    reason, and all that was admitted is answered."""
    mesh.write_policies(
        BatchingPolicy(name="tiny", spec=BatchingSpec(rows_max=1)),
        SlaPolicy(name="tiny", spec=SlaSpec(p99_ms=100.0, shed_factor=1.0)),
    )
    async with serving(mesh):
        mesh.runtime.compute = slow
        await learn(mesh)
        mesh.runtime.is_held = True
        tasks = start(mesh, 20)
        await mesh.wait_for(
            lambda: mesh.service.pipeline.tally.received == 20 + cost_batches_min, "all arrived"
        )
        refused = [task for task in tasks if task.done()]
        await mesh.wait_for(lambda: mesh.service.pipeline.tally.refused > 10, "refusals")
        mesh.runtime.release()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [result for result in results if isinstance(result, MeshError)]
        assert len(refused) <= len(errors) < 20
        for error in errors:
            assert error.name == "OVERLOADED"
            assert error.details == {"reason": "sla"}
            assert error.details["reason"] in REASONS
            assert error.retry_after_ms
        found = await mesh.conserved()
        assert found["infer_shed"] == len(errors)
        assert found["cost_batches tiny 1"] == 20 - len(errors) + cost_batches_min


async def test_what_cannot_make_its_deadline_is_refused_at_once(mesh: Mesh) -> None:
    """Behind a batch of 50 ms a request with 20 ms left is not admitted; one with 2 s is."""
    mesh.write_policies(BatchingPolicy(name="tiny", spec=BatchingSpec(rows_max=1)))
    async with serving(mesh):
        mesh.runtime.compute = slow
        await learn(mesh)
        mesh.runtime.is_held = True
        first = start(mesh, 1)
        await mesh.wait_for(lambda: bool(mesh.runtime.held), "the batch")
        with failing("OVERLOADED") as failed:
            await mesh.infer(timeout_s=0.02)
        assert failed.error.details == {"reason": "deadline"}
        second = start(mesh, 1, timeout_s=2.0)
        await mesh.wait_for(lambda: len(mesh.runtime.held) == 2, "the second batch")
        mesh.runtime.release()
        await asyncio.gather(*first, *second)


async def test_a_reserved_replica_takes_its_class_alone(two: Mesh) -> None:
    """Bulk fills the shared replica and waits; class 1 goes to its own at once, and nothing else
    ever does."""
    bulk = start(two, 150, risk_level=3)
    await two.wait_for(lambda: len(two.runtimes[0].held) == 2, "the shared replica is full")
    first = start(two, 2, risk_level=1)
    await two.wait_for(lambda: bool(two.runtimes[1].held), "class 1 on its replica")
    assert all(set(batch.risk_levels) == {1} for batch in two.runtimes[1].batches)
    two.runtimes[1].release()
    await asyncio.gather(*first)
    assert not any(task.done() for task in bulk)
    two.runtimes[0].release()
    await asyncio.gather(*bulk)
    assert all(set(batch.risk_levels) == {1} for batch in two.runtimes[1].batches)
    assert all(set(batch.risk_levels) == {3} for batch in two.runtimes[0].batches)


async def test_when_the_other_replica_dies_the_reserved_one_serves_everybody(two: Mesh) -> None:
    """A reserve is no reason to be down."""
    await two.runtimes[0].kill()
    replicas = two.service.pipeline.dispatcher.replicas
    await two.wait_for(lambda: not replicas.all[0].ready, "the loss is seen")
    two.runtimes[1].is_held = False
    assert await asyncio.wait_for(two.infer(risk_level=3), 5.0)


async def test_attempts_per_request_stay_within_1_2_while_a_runtime_fails(mesh: Mesh) -> None:
    """Every batch is refused by a runtime that drains: of 1,200 requests at most 20 % (and what of
    the 100 that are always allowed is forgotten meanwhile, 10 a second) are sent a second time, the
    others learn it at once. The breaker, which would end this sooner, is set not to open."""
    never = BreakerSpec(consecutive_timeouts=1_000_000, requests_min=1_000_000)
    mesh.write_policies(BreakerPolicy(name="tiny", spec=never))
    async with serving(mesh):
        mesh.runtime.error = MeshError("CANCELLED", "it drains")
        results: list[Any] = []
        begun_s = time.monotonic()
        for _ in range(12):
            results += await asyncio.gather(*start(mesh, 100), return_exceptions=True)
        took_s = time.monotonic() - begun_s
        assert all(isinstance(result, MeshError) for result in results)
        found = await mesh.conserved()
        attempts = sum(len(batch.rows) for batch in mesh.runtime.batches)
        assert attempts <= 1.2 * 1_200 + retry_parts_min / retry_memory_s * took_s
        assert found["retries_refused"] > 0
        assert found["parts_retried"] == attempts - 1_200
