"""Batches that are kept back until their runtime is nearly done, and what may happen meanwhile:
another model, a cancel, a policy, the runtime's death."""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from contracts.execution import Execute, Executed
from contracts.policies import (
    BatchingPolicy,
    BatchingSpec,
    Policy,
    PriorityPolicy,
    PrioritySpec,
    SlaPolicy,
    SlaSpec,
)
from services.orchestrator.config import cost_batches_min
from services.orchestrator.forecast import Known
from shared.rpc.server import DEFERRED, Call
from tests.simulation.orchestrator_mesh import Mesh, Runtime, compute, now_us, numbers, serving
from tests.simulation.test_orchestrator_tokens import ask
from tests.simulation.test_orchestrator_tokens import compute as token_compute
from tests.simulation.test_orchestrator_tokens import token_mesh as plain_token_mesh
from tests.unit.services.orchestrator.making import policy_set

FORWARD_S, CLAIMED_S = 0.02, 0.4
ROWS_MAX = 4


def token_mesh(**options: Any) -> Mesh:
    """`tiny`, `delay` and `wordy`, small batches and short windows."""
    mesh = plain_token_mesh(
        tokens_max=8_192, tokens_split=1_000, rows_max=ROWS_MAX, wait_ms=1.0, **options
    )
    patient = SlaPolicy(name="*", spec=SlaSpec(p99_ms=10_000))
    mesh.policies += [batching(ROWS_MAX), patient]
    return mesh


def batching(rows_max: int) -> BatchingPolicy:
    """Of `tiny`."""
    return BatchingPolicy(name="tiny", spec=BatchingSpec(rows_max=rows_max, wait_ms=1.0))


def computed(batch: Execute) -> Executed:
    """What either model gives."""
    return token_compute(batch) if batch.lengths else compute(batch)


def known_of(mesh: Mesh, name: str) -> Known:
    """What was learnt of a model."""
    known = mesh.service.pipeline.dispatcher.forecast._known
    return next(found for plan, found in known.items() if plan.name == name)


def claim(seconds: float) -> Callable[[Execute], Executed]:
    """Computes at once, and says that it took so long."""
    return lambda batch: replace(computed(batch), forward_us=int(seconds * 1e6), wait_us=1_000)


async def one_kept_back(mesh: Mesh, waiting: int = 1) -> tuple[Any, list[Any]]:
    """A request that the runtime holds, and such that are kept back behind it."""
    mesh.runtime.compute = claim(CLAIMED_S)
    for _ in range(cost_batches_min):
        await mesh.infer(1.0)
    mesh.runtime.is_held = True
    first = asyncio.create_task(mesh.infer(1.0))
    await mesh.wait_for(lambda: len(mesh.runtime.held) == 1, "the first batch")
    kept = [asyncio.create_task(mesh.infer(10.0 + number)) for number in range(waiting)]
    queue = mesh.service.pipeline.dispatcher.queue
    await mesh.wait_for(lambda: queue.parts == waiting, "those that wait")
    await asyncio.sleep(0.01)  # past their window
    assert any(lane.is_kept_back for lane in queue.waiting())
    return first, kept


def in_its_own_time(runtime: Runtime, order: list[str]) -> None:
    """From now on it computes one batch after the other, FORWARD_S each."""
    free_s = 0.0

    def execute(call: Call) -> Any:
        nonlocal free_s
        loop, received_us = asyncio.get_running_loop(), now_us()
        begins_s = max(loop.time(), free_s)
        wait_us = int((begins_s - loop.time()) * 1e6)
        free_s = begins_s + FORWARD_S
        order.append(call.body.model_name)

        def answer() -> None:
            call.reply(
                replace(
                    computed(call.body), received_us=received_us, sent_us=now_us(),
                    wait_us=wait_us, forward_us=int(FORWARD_S * 1e6),
                )
            )  # fmt: skip

        loop.call_later(free_s - loop.time(), answer)
        return DEFERRED

    runtime._handlers["execute"] = execute  # type: ignore[index]


async def test_a_lane_with_a_longer_lead_does_not_starve_another() -> None:
    """`wordy` floods and is to be sent 10 ms earlier than `tiny`, so that it would take every place
    before it; the turn decides all the same."""
    order: list[str] = []
    mesh = token_mesh()
    in_its_own_time(mesh.runtime, order)
    async with serving(mesh):
        for _ in range(cost_batches_min):
            await mesh.infer(1.0)
            await ask(mesh, [1] * 3)
        known_of(mesh, "tiny").lead.seconds = 0.002
        known_of(mesh, "wordy").lead.seconds = 0.012
        is_over = False

        async def flood() -> None:
            while not is_over:
                await ask(mesh, *([[1] * 3] * ROWS_MAX))

        floods = [asyncio.create_task(flood()) for _ in range(8)]
        await asyncio.sleep(10 * FORWARD_S)
        order.clear()
        await mesh.infer(1.0)
        is_over = True
        await asyncio.gather(*floods)
        assert order.index("tiny") <= 3, order


async def test_what_was_kept_back_and_cancelled_teaches_nothing() -> None:
    """The next request goes to an idle runtime and is not taken for a batch that came late."""
    async with serving(token_mesh()) as mesh:
        first, kept = await one_kept_back(mesh, 3)
        for task in kept:
            task.cancel()
        await asyncio.gather(*kept, return_exceptions=True)
        queue = mesh.service.pipeline.dispatcher.queue
        await mesh.wait_for(lambda: queue.parts == 0, "the cancels")
        mesh.runtime.release()
        await first
        known = known_of(mesh, "tiny")
        before_s = known.lead.seconds
        mesh.runtime.compute = lambda batch: replace(claim(CLAIMED_S)(batch), wait_us=0)
        await mesh.infer(1.0)
        assert known.lead.seconds == before_s
        assert (await mesh.conserved())["infer_cancelled"] == 3


async def test_the_runtime_dies_while_a_batch_is_kept_back() -> None:
    """What it had and what waited for it is answered by its next life."""
    async with serving(token_mesh()) as mesh:
        first, kept = await one_kept_back(mesh, 6)
        mesh.runtime.held.clear()
        mesh.runtime.is_held = False
        await mesh.runtime.kill_and_start()
        answers = await asyncio.gather(first, *kept)
        assert [numbers(answer) for answer in answers[1:]] == [[20.0 + 2 * n] for n in range(6)]
        assert (await mesh.conserved())["infer_answered"] == cost_batches_min + 7


async def test_a_smaller_batch_is_committed_while_one_is_kept_back() -> None:
    """rows_max 4 becomes 1, reservations come and go: what waits is answered, none is lost."""
    async with serving(token_mesh()) as mesh:
        first, kept = await one_kept_back(mesh, 3)
        wide = asyncio.create_task(mesh.infer(50.0, rows=4))
        pipeline = mesh.service.pipeline
        await mesh.wait_for(lambda: pipeline.dispatcher.queue.rows == 7, "the wide one")
        others = [policy for policy in mesh.policies if policy.name != "tiny"]
        tiny = [
            policy
            for policy in mesh.policies
            if policy.name == "tiny" and not isinstance(policy, BatchingPolicy)
        ]
        reserved = PriorityPolicy(name="*", spec=PrioritySpec(reserved_replicas={"1": 1}))
        steps: list[list[Policy]] = [[batching(1), reserved], [batching(1)]]
        for number, more in enumerate(steps):
            pipeline.activate(policy_set(*others, *tiny, *more, version=2 + number))
        await asyncio.sleep(0.01)
        mesh.runtime.release()
        await first
        await asyncio.gather(*kept)
        assert numbers(await wide) == [100.0, 102.0, 104.0, 106.0]
        assert (await mesh.conserved())["infer_failed"] == 0
