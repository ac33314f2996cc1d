"""The runtime on its socket: policies in, models ready, batches answered."""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from contracts.distribution import Position
from contracts.errors import MeshError
from contracts.execution import Executed
from contracts.policies import Policy, PolicySet
from contracts.types import Empty
from services.model_runtime.backends import architectures, base
from services.model_runtime.batch import Batch
from services.model_runtime.config import credits_batches, queue_batches_max
from services.model_runtime.service import ModelRuntime
from shared.environment import Environment
from shared.last_good import LastGood, LastGoodFile
from shared.lifecycle import running
from shared.rpc.client import RpcClient
from shared.service import Unfit

BENCH = Path(__file__).parents[4] / "examples/bench"
Make = Callable[..., Any]


@pytest.fixture
def home() -> Iterator[Path]:
    """A copy of the bench home at a path short enough for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    shutil.copytree(BENCH, folder / "h")
    yield folder / "h"
    shutil.rmtree(folder)


def remember(home: Path, version: int = 1) -> None:
    """Make the home's first policies the runtime's last good ones."""
    tables = msgspec.toml.decode((home / "policies.toml").read_bytes())["policy"]
    policies = PolicySet(version=version, policies=msgspec.convert(tables, list[Policy]))
    position = Position(epoch=1, sequence=version, hash=policies.digest())
    (home / ".mortise/policy").mkdir(parents=True, exist_ok=True)
    file = LastGoodFile(home / ".mortise/policy", "model_runtime.0", "test")
    file.write_candidate(LastGood(position=position, policies=policies))
    file.adopt_candidate()


@pytest.fixture
async def client(home: Path) -> AsyncIterator[RpcClient]:
    """A client of a runtime that started with last-good policies."""
    remember(home)
    environment = Environment.for_test("model_runtime", home)
    async with running(ModelRuntime, environment):
        client = RpcClient(str(environment.run_dir / "model_runtime.0.sock"), "model_runtime")
        await client.connect(5.0)
        yield client
        await client.close()


async def test_a_restarted_runtime_has_its_models_before_it_answers(client: RpcClient) -> None:
    """The control plane is dead; the last good policies are enough."""
    models = await client.call("models", Empty())
    assert {(row.name, row.state) for row in models.models} == {
        ("tiny", "ready"), ("sleepy", "ready"), ("wordy", "ready"),
    }  # fmt: skip
    assert models.credits == credits_batches
    health = await client.call("health", Empty())
    assert (health.ready, health.degraded, health.policy_version) == (True, False, 1)


async def test_without_policies_it_is_live_but_not_ready(home: Path) -> None:
    """Version 0 deploys nothing, and health says so."""
    environment = Environment.for_test("model_runtime", home)
    async with running(ModelRuntime, environment):
        client = RpcClient(str(environment.run_dir / "model_runtime.0.sock"), "model_runtime")
        await client.connect(5.0)
        health = await client.call("health", Empty())
        assert (health.live, health.ready) == (True, False)
        assert health.reasons == ["no policy version yet"]
        await client.close()


async def test_a_pack_that_does_not_verify_degrades_and_the_others_serve(
    home: Path, make_batch: Make
) -> None:
    """The reason is in health and in the answer."""
    for folder in (home / "models").iterdir():
        weights = folder / "weights.safetensors"
        if weights.exists():
            weights.chmod(0o644)
            weights.write_bytes(weights.read_bytes()[:-1])
    remember(home)
    environment = Environment.for_test("model_runtime", home)
    async with running(ModelRuntime, environment):
        client = RpcClient(str(environment.run_dir / "model_runtime.0.sock"), "model_runtime")
        await client.connect(5.0)
        health = await client.call("health", Empty())
        assert (health.ready, health.degraded) == (True, True)
        assert "tiny 1 failed: PACK_INVALID" in health.reasons[0]
        with pytest.raises(MeshError, match=r"MODEL_NOT_READY.*failed to load"):
            await client.call("execute", make_batch([1], model="tiny", columns=64))
        await client.call("execute", make_batch([1], model="sleepy", columns=1))
        await client.close()


async def test_a_batch_is_answered_with_outputs_times_and_credits(
    client: RpcClient, make_batch: Make
) -> None:
    """One frame in, one frame out; stamps are in order."""
    answer: Executed = await client.call("execute", make_batch([1, 2], model="sleepy", columns=1))
    (output,) = answer.outputs
    assert (output.name, output.datatype, output.shape) == ("y", "FP32", [3, 1])
    assert np.frombuffer(output.data, "<f4").tolist() == [0, 2, 4]
    assert answer.errors == {}
    assert answer.credits == credits_batches
    assert answer.received_us + answer.wait_us + answer.forward_us <= answer.sent_us
    assert answer.forward_us >= 5_600


async def test_both_ways_of_computing_give_the_same_numbers(
    client: RpcClient, make_batch: Make
) -> None:
    """A batch that finds the compute thread busy is queued there; the answer is the same."""
    batch = make_batch([4], model="tiny", columns=64)
    alone = await client.call("execute", batch)
    behind, queued = await asyncio.gather(
        client.call("execute", make_batch([1], model="sleepy", columns=1)),
        client.call("execute", batch),
    )
    assert bytes(queued.outputs[0].data) == bytes(alone.outputs[0].data)
    assert queued.sent_us > behind.received_us
    statistics = (await client.call("statistics", Empty())).values
    assert statistics["batches"] == 3
    assert statistics["batches_pending"] == 0


async def test_a_quick_batch_is_counted_and_told_like_any_other(
    client: RpcClient, make_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inline, with its rows and its credits; a late one goes the general way."""
    monkeypatch.setattr(base, "inline_s", 1.0)  # however slow the machine was while it warmed
    answer: Executed = await client.call("execute", make_batch([1, 2], model="tiny", columns=64))
    assert (answer.outputs[0].name, answer.outputs[0].shape) == ("y", [3, 2])
    assert answer.credits == credits_batches
    assert answer.received_us + answer.wait_us + answer.forward_us <= answer.sent_us
    late = make_batch([1, 2], model="tiny", columns=64, deadlines_us=[0, 1_000_000])
    assert list((await client.call("execute", late)).errors) == [0]
    statistics = (await client.call("statistics", Empty())).values
    counted = ("batches", "batches_inline", "rows", "rows_failed", "batches_pending")
    assert [statistics[name] for name in counted] == [2, 2, 6, 1, 0]


async def test_unknown_models_and_versions_are_named(client: RpcClient, make_batch: Make) -> None:
    """Nothing is guessed."""
    with pytest.raises(MeshError, match="MODEL_UNKNOWN: absent version 1"):
        await client.call("execute", make_batch([1], model="absent"))
    with pytest.raises(MeshError, match="MODEL_UNKNOWN: tiny version 9"):
        await client.call("execute", make_batch([1], model="tiny", columns=64, model_version="9"))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"risk_levels": []}, "1 requests have 0 risk levels and 1 deadlines"),
        ({"deadlines_us": [1, 2]}, "1 requests have 1 risk levels and 2 deadlines"),
        ({"rows": [0]}, "a request has 0 rows"),
    ],
)
async def test_counts_that_disagree_are_refused(
    client: RpcClient, make_batch: Make, parts: dict[str, Any], reason: str
) -> None:
    """Every request has its rows, its risk level, its deadline."""
    batch = make_batch([1], model="tiny", columns=64)
    with pytest.raises(MeshError, match=reason) as caught:
        await client.call("execute", msgspec.structs.replace(batch, **parts))
    assert caught.value.name == "INVALID_REQUEST"


async def test_a_cancelled_batch_that_waits_is_never_computed(
    client: RpcClient, make_batch: Make
) -> None:
    """The one in progress ends; the cancelled one behind it is dropped."""
    first = asyncio.create_task(
        client.call("execute", make_batch([200], model="sleepy", columns=1))
    )
    await asyncio.sleep(0)
    ended: list[Any] = []
    msgid = client.call_nowait(
        "execute", make_batch([1], model="sleepy", columns=1), lambda *got: ended.append(got)
    )
    client.cancel(msgid)
    await first
    statistics = (await client.call("statistics", Empty())).values
    while statistics["batches_pending"]:
        statistics = (await client.call("statistics", Empty())).values
    assert (statistics["batches"], statistics["batches_cancelled"]) == (1, 1)
    assert ended == []


async def test_more_batches_than_the_queue_holds_are_refused(
    client: RpcClient, make_batch: Make
) -> None:
    """At the limit they are taken; the one above gets OVERLOADED with a hint."""
    calls = [
        client.call("execute", make_batch([1], model="sleepy", columns=1))
        for _ in range(queue_batches_max + 1)
    ]
    results = await asyncio.gather(*calls, return_exceptions=True)
    refused = [result for result in results if isinstance(result, MeshError)]
    assert [error.name for error in refused] == ["OVERLOADED"]
    assert refused[0].retry_after_ms == 10
    assert f"queue_batches_max is {queue_batches_max}" in refused[0].message


async def test_memory_and_metrics_tell_of_this_process(client: RpcClient, make_batch: Make) -> None:
    """Weights are counted; rows have a status."""
    await client.call("execute", make_batch([3], model="tiny", columns=64))
    memory = await client.call("memory", Empty())
    assert memory.weights_bytes == 108_048
    assert memory.budget_bytes == 8_192 * 1024 * 1024
    assert memory.weights_bytes < memory.predicted_bytes < memory.budget_bytes
    assert memory.measured_bytes >= memory.weights_bytes
    families = {metric.name: metric for metric in (await client.call("metrics", Empty())).metrics}
    (series,) = families["ai_runtime_row_total"].series
    assert (series.labels, series.value) == (["tiny", "1", "ok"], 3)


async def test_the_loop_turns_while_a_model_computes(client: RpcClient, make_batch: Make) -> None:
    """`ping` is answered during a long forward, which runs on a thread of its own."""
    long = asyncio.create_task(client.call("execute", make_batch([500], model="sleepy", columns=1)))
    await asyncio.sleep(0)
    await client.call("ping", Empty())
    assert not long.done()
    assert {thread.name for thread in threading.enumerate()} >= {"compute", "loader"}
    await long


async def test_out_of_memory_on_request_k_and_k_plus_1_works(
    client: RpcClient, make_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's allocator puts it: the row that does not fit has MEMORY_EXHAUSTED, its batch mates
    and the next batch are answered."""
    forward = architectures.Sleepy.__call__

    def allocate(self: Any, *inputs: Any) -> Any:
        if (inputs[0] == 3).any():
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 64 GiB")
        return forward(self, *inputs)

    monkeypatch.setattr(architectures.Sleepy, "__call__", allocate)
    answer: Executed = await client.call("execute", make_batch([1] * 5, model="sleepy", columns=1))
    assert {row: error.name for row, error in answer.errors.items()} == {3: "MEMORY_EXHAUSTED"}
    assert np.frombuffer(answer.outputs[0].data, "<f4").tolist() == [0, 2, 4, 0, 8]
    after = await client.call("execute", make_batch([1], model="sleepy", columns=1))
    assert after.errors == {}
    metrics = {row.name: row for row in (await client.call("metrics", Empty())).metrics}
    (isolated,) = metrics["ai_runtime_isolated_row_total"].series
    assert (isolated.labels, isolated.value) == (["sleepy", "1"], 1)


async def test_a_hung_forward_is_answered_and_the_process_says_that_it_is_unfit(
    client: RpcClient, make_batch: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own callers get the reason; then `Unfit` is raised on the loop, once."""
    raised: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda loop, context: raised.append(context["exception"])
    )
    monkeypatch.setattr(Batch, "forward_s_max", 0.1)
    with pytest.raises(MeshError, match=r"sleepy version 1: .* its limit is 0\.1 s") as caught:
        await client.call("execute", make_batch([1_500], model="sleepy", columns=1))
    assert caught.value.name == "FORWARD_FAILED"
    statistics = (await client.call("statistics", Empty())).values
    while statistics["batches_pending"]:
        statistics = (await client.call("statistics", Empty())).values
    (error,) = raised
    assert isinstance(error, Unfit)
    assert str(error).startswith("model sleepy version 1: a forward of a batch of 1500 has run")
