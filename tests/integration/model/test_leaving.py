"""Callers that cancel, leave or run out of time, through the whole mesh: who stays is answered, and
what nobody waits for is not computed."""

import asyncio
import random
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from benchmarks.misbehaving import SLOW_ROW_MS, mesh_with, slow
from contracts.errors import MeshError
from contracts.inference import InferenceRequest, Tensor
from contracts.types import Empty
from mortise.throwaway import Mesh
from shared.rpc.client import RpcClient

BUSY_ROWS = 8
BUSY_S = BUSY_ROWS * SLOW_ROW_MS / 1_000
CANCELS = 10_000
ROUND = 500
SEED = 20130101


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """The bench home with `slow`, which keeps the runtime busy."""
    with mesh_with(tmp_path_factory.mktemp("home"), [slow()]) as mesh:
        yield mesh


class Caller:
    """One connection of a client."""

    def __init__(self, client: RpcClient) -> None:
        self.client = client

    def ask(
        self, number: float, *, model: str = "sleepy", rows: int = 1, deadline_ms: int | None = None
    ) -> tuple[int, asyncio.Future[Any]]:
        """A request of rows that hold `number`; its answer or error arrives in the future."""
        ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        data = memoryview(struct.pack(f"<{rows}f", *[number] * rows))
        body = InferenceRequest(
            model_name=model,
            inputs=[Tensor(name="x", datatype="FP32", shape=[rows, 1], data=data)],
        )
        msgid = self.client.call_nowait(
            "infer",
            body,
            lambda result, error: ended.done() or ended.set_result(result or error),
            deadline_ms=deadline_ms,
        )
        return msgid, ended


@asynccontextmanager
async def callers(mesh: Mesh, count: int = 1) -> AsyncIterator[list[Caller]]:
    """So many connections to the orchestrator."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(count):
            client = RpcClient(mesh.socket(), "orchestrator")
            await client.connect(5.0)
            stack.push_async_callback(client.close)
            found.append(Caller(client))
        yield found


def numbers(answer: Any) -> list[float]:
    """The first output of an answer."""
    assert not isinstance(answer, MeshError), str(answer)
    data = answer.outputs[0].data
    return list(struct.unpack(f"<{len(data) // 4}f", data))


async def busy(caller: Caller, batches: int) -> list[asyncio.Future[Any]]:
    """Keep the runtime busy: it takes two batches at once, and the second waits for the first."""
    ended = []
    for _ in range(batches):
        ended.append(caller.ask(0.0, model="slow", rows=BUSY_ROWS)[1])
        await asyncio.sleep(0.05)
    return ended


async def counted(caller: Caller) -> dict[str, Any]:
    """What the orchestrator counts."""
    return dict((await caller.client.call("statistics", Empty(), timeout_s=20.0)).values)


async def settled(mesh: Mesh, caller: Caller) -> dict[str, Any]:
    """The same once nothing is in flight, every request having had one end; nothing waits or
    computes in the runtime either."""
    ends_s = time.monotonic() + 20.0
    runtime = RpcClient(mesh.socket("model_runtime"), "model_runtime")
    await runtime.connect(5.0)
    while True:
        values = await counted(caller)
        pending = (await runtime.call("statistics", Empty(), timeout_s=20.0)).values[
            "batches_pending"
        ]
        if (values["infer_in_flight"], values["queue_rows"], pending) == (0, 0, 0):
            await runtime.close()
            ends = ("answered", "refused", "failed", "cancelled")
            assert values["infer_received"] == sum(values[f"infer_{end}"] for end in ends)
            return values
        assert time.monotonic() < ends_s, f"{values}, {pending} batches pending"


async def rows_computed(mesh: Mesh, model: str) -> int:
    """Rows of a model that the runtime has computed."""
    runtime = RpcClient(mesh.socket("model_runtime"), "model_runtime")
    await runtime.connect(5.0)
    metrics = (await runtime.call("metrics", Empty())).metrics
    await runtime.close()
    (family,) = (family for family in metrics if family.name == "ai_runtime_row_total")
    return sum(int(row.value) for row in family.series if row.labels[0] == model)


async def test_100_queued_90_clients_leave_and_the_model_runs_at_most_11(mesh: Mesh) -> None:
    """Whichever 90 hang up while the runtime is busy: only the other ten are computed."""
    before = await rows_computed(mesh, "sleepy")
    async with callers(mesh) as [first], callers(mesh, 100) as clients:
        working = await busy(first, batches=2)
        asked = [client.ask(float(n))[1] for n, client in enumerate(clients)]
        while (await counted(first))["infer_in_flight"] < 102:
            assert not working[0].done(), "the machine was too slow for this test"
        stay = set(random.Random(SEED).sample(range(100), 10))
        for n, client in enumerate(clients):
            if n not in stay:
                await client.client.close()
        answers = [await asked[n] for n in sorted(stay)]
        await asyncio.gather(*working)
        await settled(mesh, first)
    assert [numbers(answer) for answer in answers] == [[2.0 * n] for n in sorted(stay)]
    assert await rows_computed(mesh, "sleepy") - before <= 11


async def test_cancel_one_of_four_in_a_batch_and_three_answer(mesh: Mesh) -> None:
    """The batch waits at the runtime already when one of its callers cancels."""
    async with callers(mesh) as [caller]:
        (working,) = await busy(caller, batches=1)
        four = [caller.ask(float(n)) for n in range(4)]
        await asyncio.sleep(0.1)
        caller.client.cancel(four[1][0])
        answers = [numbers(await ended) for n, (_, ended) in enumerate(four) if n != 1]
        await working
        assert answers == [[0.0], [4.0], [6.0]]
        assert not four[1][1].done()
        await settled(mesh, caller)


async def test_a_clients_time_out_in_a_batch_does_not_fail_the_others(mesh: Mesh) -> None:
    """One of four has 100 ms, the runtime is busy for longer: it ends in time, three answer."""
    async with callers(mesh) as [caller]:
        (working,) = await busy(caller, batches=1)
        four = [caller.ask(float(n), deadline_ms=100 if n == 2 else None) for n in range(4)]
        ends = [await ended for _, ended in four]
        await working
        assert isinstance(ends[2], MeshError)
        assert ends[2].name == "DEADLINE_EXCEEDED"
        assert [numbers(ends[n]) for n in (0, 1, 3)] == [[0.0], [2.0], [6.0]]
        await settled(mesh, caller)


async def test_500_requests_with_50_ms_deadline_then_100_normal_ones_are_all_answered(
    mesh: Mesh,
) -> None:
    """What the hopeless leave behind costs those that follow nothing."""
    async with callers(mesh) as [caller]:
        working = await busy(caller, batches=2)
        hopeless = [caller.ask(1.0, deadline_ms=50)[1] for _ in range(500)]
        normal = [caller.ask(float(n))[1] for n in range(100)]
        ended = await asyncio.gather(*hopeless)
        answers = await asyncio.gather(*normal)
        await asyncio.gather(*working)
        assert {end.name for end in ended if isinstance(end, MeshError)} == {"DEADLINE_EXCEEDED"}
        assert [numbers(answer) for answer in answers] == [[2.0 * n] for n in range(100)]
        await settled(mesh, caller)


async def test_10000_cancels_return_the_gauges_to_zero(mesh: Mesh) -> None:
    """At every moment of a request's life; counters conserve, and the next request is answered."""
    chance = random.Random(SEED)
    async with callers(mesh, 4) as clients:
        before = await counted(clients[0])
        for _ in range(CANCELS // ROUND):
            asked = [(client, client.ask(1.0)[0]) for client in clients for _ in range(ROUND // 4)]
            chance.shuffle(asked)
            for client, msgid in asked:
                if chance.random() < 0.01:
                    await asyncio.sleep(0)
                client.client.cancel(msgid)
            await asyncio.sleep(chance.choice([0.0, 0.001, 0.01]))
        for client in clients:  # what was sent before has arrived when this is answered
            await client.client.call("ping", Empty(), timeout_s=20.0)
        after = await settled(mesh, clients[0])
        assert after["infer_received"] - before["infer_received"] == CANCELS
        assert after["infer_cancelled"] > before["infer_cancelled"]
        assert numbers(await clients[0].ask(21.0)[1]) == [42.0]
