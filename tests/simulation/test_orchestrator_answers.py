"""The orchestrator among fakes: what is answered, refused, batched and kept apart."""

import asyncio
import random

import msgspec
import pytest

from contracts.errors import MeshError
from contracts.policies import BatchingPolicy, BatchingSpec, Fallback, RoutePolicy, RouteSpec
from contracts.types import UNSET, Empty
from tests.simulation.orchestrator_mesh import (
    LINEAGE,
    Mesh,
    delay_request,
    failing,
    numbers,
    serving,
    tiny_request,
)


async def test_a_tensor_request_is_answered_with_lineage_times_and_hops() -> None:
    """The whole way through the socket, both hops named."""
    async with serving(Mesh()) as mesh:
        answer = await mesh.infer(3.0, id="mine", tenant_id="t")
        assert numbers(answer) == [6.0]
        assert (answer.id, answer.model_version, answer.policy_version) == ("mine", "1", 1)
        assert answer.lineage.snapshot.startswith("sha256:")
        timing = answer.timing_us
        stages = (
            timing.queue, timing.features, timing.batch, timing.transfer, timing.tokenize,
            timing.forward, timing.postprocess, timing.reply,
        )  # fmt: skip
        assert sum(stages) == timing.total
        names = [hop.instance.split(".")[0] for hop in timing.hops]
        assert names == ["orchestrator", "model_runtime"]
        assert all(0 <= hop.received <= hop.sent <= timing.total for hop in timing.hops)
        found = await mesh.conserved()
        assert (found["infer_answered"], found["infer_in_flight"]) == (1, 0)


async def test_rows_go_through_the_fabric_and_bad_ones_fail_alone() -> None:
    """Features, predictions, freshness; a refused row has its status, the others their answer."""
    async with serving(Mesh()) as mesh:
        answer = await mesh.delay(90, -1, 10, entity="N1")
        assert [row.label for row in answer.predictions] == ["late", "on_time"]
        assert [row.action for row in answer.predictions] == ["warn", "none"]
        statuses = [
            item.status if item.status == "ok" else item.status.name for item in answer.items
        ]
        assert statuses == ["ok", "FEATURE_INVALID", "ok"]
        assert answer.lineage.data == LINEAGE.data
        assert (answer.freshness_s, answer.marks) == (10.0, [])
        assert [hop.instance.split(".")[0] for hop in answer.timing_us.hops] == [
            "orchestrator", "data_fabric", "model_runtime",
        ]  # fmt: skip
        with failing("FEATURE_INVALID") as failed:
            await mesh.delay(-1, -2)
        assert "hour" in failed.error.message
        mesh.fabric.freshness_s = 61.0
        assert (await mesh.delay(5)).marks == ["stale"]


async def test_requests_that_arrive_together_share_a_frame() -> None:
    """64 at once: the idle runtime gets one full batch, then the other."""
    async with serving(Mesh()) as mesh:
        answers = await asyncio.gather(*(mesh.infer(float(n)) for n in range(64)))
        assert [numbers(answer) for answer in answers] == [[2.0 * n] for n in range(64)]
        assert [len(batch.rows) for batch in mesh.runtime.batches] == [32, 32]


async def test_while_the_runtime_is_busy_rows_gather() -> None:
    """Late binding: what arrives behind a running batch leaves together when it is answered."""
    mesh = Mesh()
    policy = BatchingPolicy(name="tiny", spec=BatchingSpec(wait_ms=1_000.0))
    mesh.write_policies(policy)
    async with serving(mesh):
        mesh.runtime.is_held = True
        first = asyncio.create_task(mesh.infer(1.0))
        await mesh.wait_for(lambda: len(mesh.runtime.held) == 1, "the first batch")
        others = [asyncio.create_task(mesh.infer(float(n))) for n in range(2, 12)]
        await asyncio.sleep(0.02)
        assert len(mesh.runtime.batches) == 1
        mesh.runtime.release()
        await asyncio.gather(first, *others)
        assert [sum(batch.rows) for batch in mesh.runtime.batches] == [1, 10]


async def test_a_waiting_row_leaves_when_its_window_ends() -> None:
    """10 ms after it arrived, although the runtime still computes."""
    async with serving(Mesh()) as mesh:
        mesh.runtime.is_held = True
        tasks = [asyncio.create_task(mesh.infer(1.0))]
        await mesh.wait_for(lambda: len(mesh.runtime.held) == 1, "the first batch")
        tasks.append(asyncio.create_task(mesh.infer(2.0)))
        await mesh.wait_for(lambda: len(mesh.runtime.held) == 2, "the second batch", 1.0)
        mesh.runtime.release()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("rows", [32, 33, 100])
async def test_a_long_request_is_divided_and_comes_back_in_order(rows: int) -> None:
    """No batch above 32 rows; the parts are joined again, over both ways of input."""
    async with serving(Mesh(runtimes=2)) as mesh:
        answer = await mesh.infer(0.0, rows)
        assert numbers(answer) == [2.0 * n for n in range(rows)]
        sent = [sum(batch.rows) for runtime in mesh.runtimes for batch in runtime.batches]
        assert max(sent) <= 32
        assert sum(sent) == rows
        hours = [n % 90 if n % 7 else -1 for n in range(rows)]
        answer = await mesh.delay(*hours)
        good = [hour for hour in hours if hour >= 0]
        assert [round(row.probabilities["late"] * 100) for row in answer.predictions] == good
        assert [item.status == "ok" for item in answer.items] == [hour >= 0 for hour in hours]
        assert answer.usage.rows == len(good)


async def test_answers_keep_to_their_callers_over_1000_random_merges() -> None:
    """Both models, one to forty rows, both runtimes, random pauses: each gets its own numbers."""
    rng = random.Random(7)
    callers = asyncio.Semaphore(100)
    async with serving(Mesh(runtimes=2)) as mesh:

        async def ask(number: int) -> None:
            rows = rng.choice((1, 1, 1, 2, 3, 40))
            async with callers:
                await asyncio.sleep(rng.random() * 0.02)
                if rng.random() < 0.7:
                    answer = await mesh.infer(float(number), rows, tenant_id=rng.choice("abc"))
                    assert numbers(answer) == [2.0 * (number + row) for row in range(rows)]
                else:
                    hours = [number % 100] * rows
                    answer = await mesh.delay(*hours, risk_level=rng.choice((1, 2, 3)))
                    shares = [round(row.probabilities["late"] * 100) for row in answer.predictions]
                    assert shares == hours

        await asyncio.gather(*(ask(number) for number in range(1_000)))
        found = await mesh.conserved()
        assert found["infer_answered"] == 1_000
        assert found["batches"] < 1_000


async def test_the_declared_fallback_answers_while_the_version_is_missing() -> None:
    """Marked degraded; the version itself again once a replica has it."""
    mesh = Mesh()
    spec = RouteSpec(default="1", fallback=Fallback(model_name="delay"))
    mesh.policies = [
        msgspec.structs.replace(policy, spec=spec)
        if isinstance(policy, RoutePolicy) and policy.name == "tiny"
        else policy
        for policy in mesh.policies
    ]
    async with serving(mesh):
        loaded = mesh.runtime.models
        mesh.runtime.models = [row for row in loaded if row.name == "delay"]
        replicas = mesh.service.pipeline.dispatcher.replicas
        await replicas.all[0].poll()
        raw = delay_request(80).rows
        body = {"model_name": "tiny", "rows": raw}
        answer = await mesh.client.call("infer", body)
        assert (answer.model_name, answer.variant, answer.degraded) == ("delay", "fallback", True)
        mesh.runtime.models = loaded
        await replicas.all[0].poll()
        assert not (await mesh.infer(1.0)).degraded


async def test_refusals_name_their_reason_and_are_counted() -> None:
    """Unknown model, a form that it does not take, a broken tensor, explanations."""
    async with serving(Mesh()) as mesh:
        for name, body in (
            ("MODEL_UNKNOWN", {"model_name": "nobody", "text": ["a"]}),
            ("MODEL_UNKNOWN", {"model_name": "tiny", "model_version": "9", "text": ["a"]}),
            ("INVALID_REQUEST", {"model_name": "tiny", "text": ["a"]}),
            ("INVALID_REQUEST", {"model_name": "delay", "rows": []}),
        ):
            with failing(name):
                await mesh.client.call("infer", body)
        with failing("INVALID_REQUEST") as failed:
            await mesh.infer(1.0, explain=True)
        assert "explain" in failed.error.message
        assert len(failed.error.trace_id) == 32
        found = await mesh.conserved()
        assert (found["infer_refused"], found["infer_answered"]) == (5, 0)


async def test_models_lists_every_published_version_with_its_state() -> None:
    """Name, task, digests, how many replicas have it."""
    async with serving(Mesh(runtimes=2)) as mesh:
        rows = (await mesh.client.call("models", Empty())).models
        assert [(row.name, row.task, row.state, row.replicas) for row in rows] == [
            ("delay", "classifier", "ready", 2),
            ("tiny", "tensor", "ready", 2),
        ]


async def test_an_error_of_the_runtime_reaches_every_request_of_its_batch_alone() -> None:
    """FORWARD_FAILED is not retried; the next batch is fine."""
    async with serving(Mesh()) as mesh:
        mesh.runtime.error = MeshError("FORWARD_FAILED", "the forward raised")
        results = await asyncio.gather(*(mesh.infer(1.0) for _ in range(3)), return_exceptions=True)
        assert [error.name for error in results] == ["FORWARD_FAILED"] * 3
        mesh.runtime.error = None
        assert numbers(await mesh.infer(1.0)) == [2.0]
        assert (await mesh.conserved())["infer_failed"] == 3


async def test_a_runtime_that_breaks_the_model_s_contract_is_not_passed_on() -> None:
    """K5: another shape than promised is OUTPUT_INVALID."""
    async with serving(Mesh()) as mesh:
        honest = mesh.runtime.compute

        def lying(batch: object) -> object:
            answer = honest(batch)  # type: ignore[arg-type]
            answer.outputs[0].shape.append(1)
            return answer

        mesh.runtime.compute = lying  # type: ignore[assignment]
        with failing("OUTPUT_INVALID"):
            await mesh.infer(1.0)


async def test_health_says_what_is_missing() -> None:
    """Ready with everything, degraded without the fabric, not ready without any replica."""
    async with serving(Mesh()) as mesh:
        health = await mesh.client.call("health", Empty())
        assert (health.ready, health.degraded, health.reasons) == (True, False, [])
        await mesh.fabric.kill()
        await mesh.wait_for(
            lambda: not mesh.service.pipeline.features.is_there, "the loss of the fabric"
        )
        health = await mesh.client.call("health", Empty())
        assert (health.ready, health.degraded) == (True, True)
        assert health.reasons == ["the data fabric is away"]
        await mesh.control_plane.kill()
        await mesh.wait_for(lambda: bool(mesh.service._shipper.fault), "its loss", 3.0)
        await mesh.runtime.kill()
        await mesh.wait_for(lambda: not mesh.service.readiness().ready, "the loss of the replica")
        health = await mesh.client.call("health", Empty())
        assert any("tiny 1" in reason for reason in health.reasons)


async def test_metrics_name_models_and_stages_but_no_tenant() -> None:
    """Closed label sets; gauges are back at zero."""
    async with serving(Mesh()) as mesh:
        await mesh.infer(1.0, tenant_id="secret")
        with failing("MODEL_UNKNOWN"):
            await mesh.client.call("infer", {"model_name": "made.up", "text": ["a"]})
        families = {row.name: row for row in (await mesh.client.call("metrics", Empty())).metrics}
        requests = {tuple(row.labels): row.value for row in families["ai_request_total"].series}
        assert requests["tiny", "1", "ok"] == 1.0
        assert requests["unknown", "-", "MODEL_UNKNOWN"] == 1.0
        assert families["ai_requests_in_flight"].series[0].value == 0.0
        assert {row.labels[2] for row in families["ai_stage_seconds"].series} >= {"forward"}
        assert "secret" not in str(families)


async def test_an_absent_output_list_is_everything_and_an_empty_one_nothing() -> None:
    """`outputs` selects through the socket too."""
    async with serving(Mesh()) as mesh:
        assert (await mesh.infer(1.0, outputs=[])).outputs == []
        assert len((await mesh.infer(1.0, outputs=["y"])).outputs) == 1
        assert tiny_request(1.0).outputs is UNSET
