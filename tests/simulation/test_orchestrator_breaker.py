"""Versions that fail are taken out, their fallbacks answer, and they return."""

import asyncio
import shutil
import struct
from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import MeshError
from contracts.execution import Execute, Executed
from contracts.policies import (
    BreakerPolicy,
    BreakerSpec,
    Fallback,
    RoutePolicy,
    RouteSpec,
)
from services.orchestrator.breaker import State
from shared.rpc.client import RpcClient
from shared.rpc.server import Call
from tests.simulation.orchestrator_mesh import (
    Mesh,
    Runtime,
    compute,
    contract,
    failing,
    numbers,
    serving,
    tiny_request,
)
from tests.unit.services.orchestrator.making import policy_set

QUICK = BreakerSpec(consecutive_timeouts=3, requests_min=4, open_s=0.2, probes=2)


def mesh_with_fallback(spec: BreakerSpec = QUICK, runtimes: int = 1) -> Mesh:
    """`tiny` with the declared fallback `small`."""
    mesh = Mesh(runtimes)
    mesh._stage("small", contract(name="small", rows_max=7))
    for runtime in mesh.runtimes:
        runtime.models = list(mesh.loaded)
    routes = {"tiny": RouteSpec(default="1", fallback=Fallback(model_name="small"))}
    mesh.policies = [
        msgspec.structs.replace(policy, spec=routes[policy.name])
        if isinstance(policy, RoutePolicy) and policy.name in routes
        else policy
        for policy in mesh.policies
    ]
    mesh.policies += [BreakerPolicy(name=name, spec=spec) for name in ("tiny", "small")]
    return mesh


def break_model(runtime: Runtime, *names: str, error: str = "FORWARD_FAILED") -> None:
    """Every batch of these models fails; the others are answered."""

    def answer(call: Call) -> None:
        if call.body.model_name in names:
            call.fail(MeshError(error, "poisoned"))
        else:
            call.reply(compute(call.body))

    runtime._answer = answer  # type: ignore[method-assign]


def hang_model(runtime: Runtime, name: str) -> None:
    """Batches of this model are never answered."""

    def answer(call: Call) -> None:
        if call.body.model_name != name:
            call.reply(compute(call.body))

    runtime._answer = answer  # type: ignore[method-assign]


def heal(runtime: Runtime) -> None:
    """As before."""
    del runtime._answer  # type: ignore[attr-defined]


async def refused(mesh: Mesh, error: str, times: int = 1, **options: Any) -> MeshError:
    """The error of the last of so many requests."""
    for _ in range(times):
        with failing(error) as failed:
            await mesh.infer(1.0, **options)
    return failed.error


def models_of(runtime: Runtime) -> list[str]:
    """Which models its batches were for."""
    return [batch.model_name for batch in runtime.batches]


async def test_a_poisoned_model_trips_the_breaker_and_the_fallback_answers() -> None:
    """Four failures; then every answer is the lighter model's, marked and metered apart."""
    async with serving(mesh_with_fallback(BreakerSpec(requests_min=4))) as mesh:
        break_model(mesh.runtime, "tiny")
        await refused(mesh, "FORWARD_FAILED", 4)
        answers = [await mesh.infer(float(n), id=f"r{n}") for n in range(20)]
        assert {(answer.model_name, answer.variant, answer.degraded) for answer in answers} == {
            ("small", "fallback", True)
        }
        assert [numbers(answer) for answer in answers] == [[2.0 * n] for n in range(20)]
        assert models_of(mesh.runtime) == ["tiny"] * 4 + ["small"] * 20
        await mesh.wait_for(lambda: len(mesh.control_plane.receipts) == 20, "the receipts")
        assert {(row.variant, row.degraded) for row in mesh.control_plane.receipts} == {
            ("fallback", True)
        }
        found = await mesh.conserved()
        assert (found["breakers_out"], found["breaker.tiny.1"]) == (1, "open")
        assert (found["breakers_opened"], found["fallback_requests"]) == (1, 20)
        health = mesh.service.readiness()
        assert (health.ready, health.degraded) == (True, True)
        assert any("tiny 1: breaker open: 4 of the latest 4" in text for text in health.reasons)
        series = {
            (metric.name, *row.labels): row.value
            for metric in mesh.service.metrics()
            for row in metric.series
        }
        assert series["ai_fallback_total", "tiny", "small", "1"] == 20
        assert series["ai_breaker_total", "tiny", "1", "open"] == 1
        assert series["ai_breakers_out",] == 1


async def test_a_version_that_hangs_is_out_after_so_many_time_outs_in_a_row() -> None:
    """Each of them ended by its deadline; after that nobody waits for it."""
    async with serving(mesh_with_fallback()) as mesh:
        await mesh.infer(1.0)
        hang_model(mesh.runtime, "tiny")
        await refused(mesh, "DEADLINE_EXCEEDED", 3, timeout_s=0.2)
        answer = await mesh.infer(4.0, timeout_s=0.2)
        assert (answer.model_name, answer.degraded) == ("small", True)


async def test_deadlines_that_nobody_could_keep_are_the_client_s() -> None:
    """500 requests with far too short deadlines, then 100 normal ones: all answered, not degraded.
    What waited for its turn never counts against the version."""
    async with serving(mesh_with_fallback()) as mesh:
        runtime, at_once = mesh.runtime, mesh.runtime._answer

        def slow(call: Call) -> None:
            asyncio.get_running_loop().call_later(0.015, reply_if_open, call)

        def reply_if_open(call: Call) -> None:
            if not call.ended:
                at_once(call)

        runtime._answer = slow  # type: ignore[method-assign]
        hasty = [mesh.infer(1.0, timeout_s=0.012) for _ in range(500)]
        ended = await asyncio.gather(*hasty, return_exceptions=True)
        assert any(isinstance(end, MeshError) for end in ended)
        answers = await asyncio.gather(*(mesh.infer(float(n)) for n in range(100)))
        assert {answer.model_name for answer in answers} == {"tiny"}
        assert (await mesh.conserved())["breakers_opened"] == 0


async def test_a_pinned_request_for_a_version_that_is_out_is_told_when_to_return() -> None:
    """It asked for that version and no other; so is one without a declared fallback."""
    async with serving(mesh_with_fallback()) as mesh:
        break_model(mesh.runtime, "tiny")
        await refused(mesh, "FORWARD_FAILED", 4)
        error = await refused(mesh, "MODEL_NOT_READY", model_version="1")
        assert error.retry_after_ms is not None
        assert 50 <= error.retry_after_ms <= 250
        assert "breaker is open" in error.message


async def test_a_fallback_that_is_out_too_has_no_fallback() -> None:
    """No loop: the request is refused at the door."""
    async with serving(mesh_with_fallback(BreakerSpec(requests_min=4))) as mesh:
        break_model(mesh.runtime, "tiny", "small")
        await refused(mesh, "FORWARD_FAILED", 8)
        error = await refused(mesh, "MODEL_NOT_READY")
        assert "no fallback can answer" in error.message
        assert models_of(mesh.runtime) == ["tiny"] * 4 + ["small"] * 4


async def test_probes_close_the_breaker_of_a_version_that_recovered() -> None:
    """After its time two probes go, one behind the other; then everybody."""
    async with serving(mesh_with_fallback()) as mesh:
        break_model(mesh.runtime, "tiny")
        await refused(mesh, "FORWARD_FAILED", 4)
        assert (await mesh.infer(1.0)).variant == "fallback"
        heal(mesh.runtime)
        await asyncio.sleep(QUICK.open_s * 1.3)
        variants = [(await mesh.infer(1.0)).variant for _ in range(4)]
        assert variants == ["default"] * 4
        found = await mesh.conserved()
        assert (found["breakers_out"], found["breakers_opened"]) == (0, 1)
        assert mesh.service.readiness().reasons == []


async def test_while_half_open_only_the_probes_reach_it_and_a_failed_one_opens_it() -> None:
    """Of twenty at once two probe; the others go to the fallback; the probes fail."""
    async with serving(mesh_with_fallback()) as mesh:
        break_model(mesh.runtime, "tiny")
        await refused(mesh, "FORWARD_FAILED", 4)
        await asyncio.sleep(QUICK.open_s * 1.3)
        asked = [mesh.infer(1.0) for _ in range(20)]
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(end, MeshError) for end in ends) == 2
        assert models_of(mesh.runtime).count("small") == 1, "one batch of the eighteen others"
        found = await mesh.conserved()
        assert (found["breaker.tiny.1"], found["breakers_opened"]) == ("open", 2)


async def test_a_probe_whose_caller_leaves_makes_room_for_the_next() -> None:
    """It says nothing of the version."""
    async with serving(mesh_with_fallback(msgspec.structs.replace(QUICK, probes=1))) as mesh:
        break_model(mesh.runtime, "tiny")
        await refused(mesh, "FORWARD_FAILED", 4)
        hang_model(mesh.runtime, "tiny")
        await asyncio.sleep(QUICK.open_s * 1.3)
        leaver = RpcClient(mesh.client.path, "orchestrator")
        await leaver.connect(5.0)
        leaver.call_nowait("infer", tiny_request(1.0), lambda result, error: None)
        leaver.flush()
        watched = next(iter(mesh.service.pipeline.breakers.shut.values()))
        await mesh.wait_for(lambda: watched.breaker.state is State.HALF_OPEN, "the probe")
        await leaver.close()
        await mesh.wait_for(lambda: mesh.service.pipeline.works.count == 0, "the disconnect")
        heal(mesh.runtime)
        assert (await mesh.infer(1.0)).variant == "default"
        assert watched.breaker.state is State.CLOSED


async def test_the_clients_own_faults_never_count() -> None:
    """Invalid requests, cancels and what the fabric refuses leave the version where it is."""
    async with serving(mesh_with_fallback()) as mesh:
        for _ in range(20):
            with failing("INVALID_REQUEST"):
                await mesh.infer(1.0, outputs=["nothing"])
            with failing("FEATURE_INVALID"):
                await mesh.delay(-1)
        mesh.fabric.error = MeshError("MEMORY_EXHAUSTED", "the fabric is full")
        for _ in range(20):
            with failing("MEMORY_EXHAUSTED"):
                await mesh.delay(1)
        assert (await mesh.conserved())["breakers_out"] == 0


async def test_after_a_restart_a_version_that_was_out_is_out(tmp_path: Path) -> None:
    """The next orchestrator of the home asks it nothing until it reopens, then probes as usual."""
    patient = msgspec.structs.replace(QUICK, open_s=1.5)  # a start may take half a second
    async with serving(mesh_with_fallback(patient)) as mesh:
        break_model(mesh.runtime, "tiny")
        await refused(mesh, "FORWARD_FAILED", 4)
        file = mesh.home / ".mortise" / "breakers.msgpack"
        kept = tmp_path / "breakers.msgpack"
        shutil.copy(file, kept)
    again = mesh_with_fallback(patient)
    (again.home / ".mortise").mkdir(exist_ok=True)
    shutil.copy(kept, again.home / ".mortise" / "breakers.msgpack")
    async with serving(again):
        assert (await again.infer(1.0)).variant == "fallback"
        assert models_of(again.runtime) == ["small"]
        await asyncio.sleep(patient.open_s * 1.3)
        assert (await again.infer(1.0)).variant == "default"
        assert (await again.infer(1.0)).variant == "default"
        assert (await again.statistics())["breakers_out"] == 0


async def test_without_its_file_the_breaker_is_learnt_again_without_harm() -> None:
    """As many failures as the policy names, and the fallback answers again; a file that nobody
    can read is the same as none."""
    mesh = mesh_with_fallback(BreakerSpec(requests_min=4))
    (mesh.home / ".mortise").mkdir(exist_ok=True)
    (mesh.home / ".mortise" / "breakers.msgpack").write_bytes(b"not this")
    async with serving(mesh):
        break_model(mesh.runtime, "tiny")
        await refused(mesh, "FORWARD_FAILED", 4)
        assert (await mesh.infer(1.0)).variant == "fallback"


async def test_an_answer_that_breaks_the_contract_counts() -> None:
    """OUTPUT_INVALID of whole batches, four times."""

    def broken(batch: Execute) -> Executed:
        answer = compute(batch)
        if batch.model_name == "tiny":
            nothing = memoryview(struct.pack("<f", 1.0) * 3)
            outputs = [msgspec.structs.replace(answer.outputs[0], shape=[3, 1], data=nothing)]
            return msgspec.structs.replace(answer, outputs=outputs)
        return answer

    async with serving(mesh_with_fallback()) as mesh:
        mesh.runtime.compute = broken
        await refused(mesh, "OUTPUT_INVALID", 4)
        assert (await mesh.infer(1.0)).variant == "fallback"


async def test_a_commit_keeps_what_breakers_know() -> None:
    """New policies do not let a poisoned version back in."""
    async with serving(mesh_with_fallback(BreakerSpec(requests_min=4))) as mesh:
        break_model(mesh.runtime, "tiny")
        await refused(mesh, "FORWARD_FAILED", 4)
        mesh.service.pipeline.activate(policy_set(*mesh.policies, version=2))
        answer = await mesh.infer(1.0)
        assert (answer.variant, answer.policy_version) == ("fallback", 2)
