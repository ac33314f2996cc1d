"""Copies for a shadow version: after the answer, only when nothing else is to do, and unbilled."""

import asyncio
import struct
from typing import Any

import msgspec
import pytest

from contracts.errors import MeshError
from contracts.execution import Execute, Executed
from contracts.pack import LoadedModel
from contracts.policies import (
    SLOTS,
    DeployedVersion,
    DeploymentPolicy,
    DeploymentSpec,
    ModelPolicy,
    ModelSpec,
    PublishedVersion,
    Shadow,
    SplitPolicy,
    SplitSpec,
)
from services.orchestrator import shadow
from services.orchestrator.config import shadow_waiting_max
from tests.simulation.orchestrator_mesh import (
    Mesh,
    Runtime,
    compute,
    contract,
    delay_contract,
    numbers,
    packed,
    serving,
)


def mesh_with_shadow(name: str = "tiny", runtimes: int = 2) -> Mesh:
    """Version 1 answers everything; version 2 gets a copy of everything."""
    mesh = Mesh(runtimes)
    model = contract(rows_max=9) if name == "tiny" else delay_contract()
    mesh._stage("other", msgspec.structs.replace(model, name=name, rows_max=9))
    root = mesh.loaded.pop().digest
    mesh.loaded.append(LoadedModel(name=name, version="2", digest=root, state="ready"))
    for runtime in mesh.runtimes:
        runtime.models = list(mesh.loaded)
    first = next(model.digest for model in mesh.loaded if model.name == name)
    digests = {"1": first, "2": root}
    mesh.policies = [
        policy
        for policy in mesh.policies[:-3]
        if not (policy.name == name and isinstance(policy, ModelPolicy | DeploymentPolicy))
    ]
    published = [PublishedVersion(version=one, digest=digests[one]) for one in digests]
    deployed = [DeployedVersion(version=version) for version in digests]
    mesh.policies += [
        ModelPolicy(name=name, spec=ModelSpec(versions=published)),
        DeploymentPolicy(name=name, spec=DeploymentSpec(versions=deployed)),
        SplitPolicy(
            name=name,
            spec=SplitSpec(
                key="trace",
                salt="s",
                shares={"1": SLOTS},
                shadow=Shadow(version="2", slots=SLOTS),
            ),
        ),
    ]
    return mesh


def batches_of(mesh: Mesh, version: str) -> list[Execute]:
    """The batches of one version, on all runtimes."""
    return [
        batch
        for runtime in mesh.runtimes
        for batch in runtime.batches
        if batch.model_version == version
    ]


def off_by(runtime: Runtime, version: str, offset: float) -> None:
    """This version's numbers are greater by so much."""

    def answer(batch: Execute) -> Executed:
        found = compute(batch)
        if batch.model_version != version:
            return found
        output = found.outputs[0]
        values = [one + offset for (one,) in struct.iter_unpack("<f", output.data)]  # type: ignore[arg-type]
        outputs = [msgspec.structs.replace(output, data=packed(values))]
        return msgspec.structs.replace(found, outputs=outputs)

    runtime.compute = answer


def counted(mesh: Mesh, name: str) -> dict[tuple[str, ...], Any]:
    """A metric's series; of a histogram the sums."""
    return {
        tuple(row.labels): row.value
        for metric in mesh.service.metrics()
        if metric.name == name
        for row in metric.series
    }


async def drained(mesh: Mesh, copies: int) -> None:
    """Until so many copies came to an end."""
    shadows = mesh.service.pipeline.shadows
    await mesh.wait_for(
        lambda: shadows.sent + shadows.failed + shadows.dropped >= copies, f"{copies} copies"
    )


async def test_a_copy_is_compared_and_neither_answered_nor_billed() -> None:
    """The answer is version 1's; version 2's numbers are 0.5 off; one receipt a request."""
    async with serving(mesh_with_shadow()) as mesh:
        for runtime in mesh.runtimes:
            off_by(runtime, "2", 0.5)
        await asyncio.sleep(0.05)  # a share is earned
        for n in range(10):
            answer = await mesh.infer(float(n), rows=2)
            assert (answer.model_version, answer.variant) == ("1", "split")
            assert numbers(answer) == [2.0 * n, 2.0 * n + 2]
        await drained(mesh, 10)
        await mesh.wait_for(lambda: len(mesh.control_plane.receipts) == 10, "the receipts")
        assert {row.model_version for row in mesh.control_plane.receipts} == {"1"}
        found = await mesh.conserved()
        assert (found["infer_received"], found["infer_answered"]) == (10, 10)
        assert found["shadows_answered"] >= 1
        copies = batches_of(mesh, "2")
        assert sum(len(batch.rows) for batch in copies) == found["shadows_answered"]
        names = ("tiny", "2")
        assert counted(mesh, "ai_shadow_total")[*names, "ok"] == found["shadows_answered"]
        apart = counted(mesh, "ai_shadow_difference")[names]
        assert apart == pytest.approx(0.5 * found["shadows_answered"])
        assert (*names, "ok") not in counted(mesh, "ai_request_total")
        assert mesh.service.pipeline.dispatcher.replicas.all[0].shadows == 0


async def test_labels_of_a_classifier_are_compared() -> None:
    """The features of the request are the copy's; no second question to the fabric."""
    async with serving(mesh_with_shadow("delay")) as mesh:
        await asyncio.sleep(0.05)
        await mesh.delay(10, 90)
        await drained(mesh, 1)
        assert counted(mesh, "ai_shadow_labels_total")["delay", "2", "yes"] == 2
        assert len(mesh.fabric.calls) == 1


async def test_shadows_are_dropped_first_when_replicas_are_busy() -> None:
    """While batches are held nothing of a shadow goes out; more copies than may wait are
    dropped, and every real request is answered."""
    async with serving(mesh_with_shadow(runtimes=1)) as mesh:
        mesh.service.pipeline.shadows._alone.rate = 1.0
        runtime = mesh.runtime
        await asyncio.sleep(0.05)
        asked = [asyncio.ensure_future(mesh.infer(float(n))) for n in range(shadow_waiting_max)]
        await asyncio.gather(*asked)
        runtime.is_held = True
        more = [asyncio.ensure_future(mesh.infer(float(n))) for n in range(8)]
        await mesh.wait_for(lambda: bool(runtime.held), "the real batch")
        before = len(batches_of(mesh, "2"))
        await asyncio.sleep(0.05)
        assert len(batches_of(mesh, "2")) <= before + 1
        runtime.release()
        await asyncio.gather(*more)
        await mesh.wait_for(
            lambda: not mesh.service.pipeline.shadows.out, "the last shadow's answer"
        )
        assert (await mesh.conserved())["infer_answered"] == shadow_waiting_max + 8


async def test_with_one_replica_shadows_take_a_small_share_of_its_time() -> None:
    """A hundred copies wait; the share of a fraction of a second lets few batches go, the others
    are dropped when their second is over."""
    async with serving(mesh_with_shadow(runtimes=1)) as mesh:
        await asyncio.gather(*(mesh.infer(float(n)) for n in range(100)))
        shadows = mesh.service.pipeline.shadows
        shadows._alone.pay(10.0)
        await mesh.wait_for(lambda: shadows.dropped > 0, "the drop")
        await drained(mesh, 100)
        assert counted(mesh, "ai_shadow_total")["tiny", "2", "dropped"] == shadows.dropped
        assert len(batches_of(mesh, "2")) <= 5


@pytest.mark.interpreted
async def test_a_shadow_that_fails_or_hangs_touches_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No breaker, no retry, no failed request; a hanging one is cancelled after its time."""
    monkeypatch.setattr(shadow, "shadow_s_max", 0.2)
    async with serving(mesh_with_shadow()) as mesh:
        for runtime in mesh.runtimes:

            def answer(call: Any) -> None:
                if call.body.model_version == "1":
                    call.reply(compute(call.body))
                elif call.body.rows == [1]:
                    call.fail(MeshError("FORWARD_FAILED", "poisoned"))

            runtime._answer = answer  # type: ignore[method-assign]
        await asyncio.sleep(0.05)
        shadows = mesh.service.pipeline.shadows
        await mesh.infer(1.0)
        await drained(mesh, 1)
        await mesh.infer(1.0, rows=2)
        await mesh.wait_for(lambda: shadows.failed == 2, "the failures")
        await mesh.wait_for(
            lambda: sum(runtime.cancelled for runtime in mesh.runtimes) == 1, "the cancel"
        )
        found = await mesh.conserved()
        assert (found["infer_answered"], found["infer_failed"]) == (2, 0)
        assert (found["breakers_out"], found["parts_retried"], found["shadows_out"]) == (0, 0, 0)


async def test_a_runtime_that_dies_with_a_shadow_is_whole_again_afterwards() -> None:
    """The copy has failed; its replica's place is free."""
    async with serving(mesh_with_shadow()) as mesh:
        for runtime in mesh.runtimes:
            replies = runtime._answer

            def answer(call: Any, reply: Any = replies) -> None:
                if call.body.model_version == "1":
                    reply(call)

            runtime._answer = answer  # type: ignore[method-assign]
        await asyncio.sleep(0.05)
        await mesh.infer(1.0)
        await mesh.wait_for(lambda: bool(batches_of(mesh, "2")), "the copy")
        for runtime in mesh.runtimes:
            await runtime.kill_and_start()
        shadows = mesh.service.pipeline.shadows
        await mesh.wait_for(lambda: shadows.failed == 1, "its loss")
        assert (
            shadows.out,
            [one.shadows for one in mesh.service.pipeline.dispatcher.replicas.all],
        ) == (0, [0, 0])
        assert numbers(await mesh.infer(3.0)) == [6.0]
