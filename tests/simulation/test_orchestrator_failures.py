"""The orchestrator when callers leave, neighbours die and disks fill: every request ends once."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import MeshError
from contracts.policies import BatchingPolicy, BatchingSpec, LimitsPolicy, LimitsSpec
from services.orchestrator import execution, replies
from services.orchestrator.config import access_sample_of
from services.orchestrator.request import Work
from services.orchestrator.segment import Segment
from services.orchestrator.spool_files import SpoolFiles
from shared import logs
from shared.rpc.client import RpcClient
from tests.simulation.orchestrator_mesh import Mesh, failing, numbers, serving, tiny_request


def ask_nowait(client: RpcClient, number: float, **options: Any) -> tuple[int, list[Any]]:
    """A request that the test may cancel; its answer or error lands in the list."""
    ends: list[Any] = []
    msgid = client.call_nowait(
        "infer", tiny_request(number, **options), lambda result, error: ends.append(result or error)
    )
    return msgid, ends


async def test_a_cancelled_request_leaves_the_queue_and_the_runtime_is_told() -> None:
    """Waiting: it never travels. Travelling alone: its batch is cancelled at the runtime."""
    async with serving(Mesh()) as mesh:
        mesh.runtime.credits = 1
        await mesh.service.pipeline.dispatcher.replicas.all[0].poll()
        mesh.runtime.is_held = True
        travelling, _ = ask_nowait(mesh.client, 1.0)
        await mesh.wait_for(lambda: len(mesh.runtime.held) == 1, "the batch")
        waiting, _ = ask_nowait(mesh.client, 2.0)
        await mesh.wait_for(lambda: mesh.service.pipeline.works.count == 2, "the second request")
        mesh.client.cancel(waiting)
        mesh.client.cancel(travelling)
        await mesh.wait_for(lambda: mesh.runtime.cancelled == 1, "the cancel at the runtime")
        found = await mesh.conserved()
        assert (found["infer_cancelled"], found["infer_in_flight"], found["queue_rows"]) == (
            2,
            0,
            0,
        )
        mesh.runtime.release()
        assert numbers(await mesh.infer(3.0)) == [6.0]
        assert len(mesh.runtime.batches) == 2


async def test_a_cancel_in_a_shared_batch_does_not_touch_the_others() -> None:
    """The batch goes on for those who wait."""
    async with serving(Mesh()) as mesh:
        mesh.runtime.is_held = True
        calls = [ask_nowait(mesh.client, float(n)) for n in range(8)]
        await mesh.wait_for(lambda: len(mesh.runtime.held) == 1, "the batch")
        for msgid, _ in calls[:4]:
            mesh.client.cancel(msgid)
        await mesh.wait_for(lambda: mesh.service.pipeline.works.count == 4, "the cancels")
        mesh.runtime.release()
        await mesh.wait_for(lambda: all(ends for _, ends in calls[4:]), "the answers")
        assert [numbers(ends[0]) for _, ends in calls[4:]] == [[8.0], [10.0], [12.0], [14.0]]
        assert not any(ends for _, ends in calls[:4])
        assert mesh.runtime.cancelled == 0
        assert (await mesh.conserved())["infer_cancelled"] == 4


async def test_a_disconnect_cancels_everything_of_its_client() -> None:
    """A client that vanishes frees queue and runtime."""
    async with serving(Mesh()) as mesh:
        mesh.runtime.is_held = True
        leaver = RpcClient(mesh.client.path, "orchestrator")
        await leaver.connect(5.0)
        for number in range(100):
            ask_nowait(leaver, float(number))
        await mesh.wait_for(lambda: mesh.service.pipeline.works.count == 100, "100 requests")
        await leaver.close()
        await mesh.wait_for(lambda: mesh.service.pipeline.works.count == 0, "the disconnect")
        await mesh.wait_for(lambda: mesh.runtime.cancelled == 2, "both batches cancelled")
        found = await mesh.conserved()
        assert (found["infer_cancelled"], found["queue_rows"]) == (100, 0)


async def test_100_queued_90_leave_and_the_ten_are_answered() -> None:
    """Nothing of those that left is computed."""
    async with serving(Mesh()) as mesh:
        mesh.runtime.credits = 1
        await mesh.service.pipeline.dispatcher.replicas.all[0].poll()
        mesh.runtime.is_held = True
        ask_nowait(mesh.client, -1.0)
        await mesh.wait_for(lambda: len(mesh.runtime.held) == 1, "a busy runtime")
        calls = [ask_nowait(mesh.client, float(n)) for n in range(100)]
        await mesh.wait_for(lambda: mesh.service.pipeline.works.count == 101, "100 waiting")
        for msgid, _ in calls[:90]:
            mesh.client.cancel(msgid)
        await mesh.wait_for(lambda: mesh.service.pipeline.works.count == 11, "90 cancels")
        mesh.runtime.release()
        await mesh.wait_for(lambda: all(ends for _, ends in calls[90:]), "ten answers")
        assert sum(sum(batch.rows) for batch in mesh.runtime.batches) == 11


async def test_a_deadline_ends_its_request_in_time_and_names_the_hop() -> None:
    """Within 20 ms after it, never before; batch mates are answered when the runtime gets there."""
    async with serving(Mesh()) as mesh:
        mesh.runtime.is_held = True
        ended: list[tuple[float, MeshError]] = []

        def on_answer(result: Any, error: MeshError | None) -> None:
            assert error is not None, "the runtime answers nothing"
            ended.append((time.monotonic() - asked_s, error))

        asked_s = time.monotonic()
        mesh.client.call_nowait("infer", tiny_request(1.0), on_answer, deadline_ms=150)
        _, patient = ask_nowait(mesh.client, 2.0)
        await mesh.wait_for(lambda: bool(ended), "the end")
        took_s, error = ended[0]
        assert error.name == "DEADLINE_EXCEEDED"
        assert error.details == {
            "stage": "execute",
            "hop": "model_runtime.0-fake0000",
            "deadline_ms": 150,
        }
        # The machine may be busy with other things: the tight bound is the unit test's.
        assert 0.150 <= took_s < 0.5
        mesh.runtime.release()
        await mesh.wait_for(lambda: bool(patient), "the batch mate's answer")
        assert numbers(patient[0]) == [4.0]
        assert (await mesh.conserved())["infer_failed"] == 1


async def test_a_silent_runtime_costs_its_share_and_names_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request with more time than one hop may take ends with that hop, and gets its credit
    back."""
    monkeypatch.setattr(execution, "_timeout_s", 0.1)
    async with serving(Mesh()) as mesh:
        mesh.runtime.is_held = True
        with failing("DEADLINE_EXCEEDED") as failed:
            await mesh.infer(1.0, timeout_s=30.0)
        assert "model_runtime.0-fake0000 did not answer" in failed.error.message
        assert failed.error.details == {
            "stage": "execute",
            "hop": "model_runtime.0-fake0000",
            "deadline_ms": 100,
        }
        assert not mesh.service.pipeline.dispatcher.replicas.all[0].batches
        await mesh.wait_for(lambda: mesh.runtime.cancelled == 1, "the cancel at the runtime")


async def test_a_runtime_that_dies_with_a_batch_is_made_good_on_another() -> None:
    """One transparent retry: the callers notice nothing."""
    async with serving(Mesh(runtimes=2)) as mesh:
        first, second = mesh.runtimes
        first.is_held = second.is_held = True
        tasks = [asyncio.create_task(mesh.infer(float(n))) for n in range(10)]
        await mesh.wait_for(lambda: bool(first.held or second.held), "a batch")
        dying, other = (first, second) if first.held else (second, first)
        other.is_held = False
        await dying.kill()
        answers = await asyncio.gather(*tasks)
        assert [numbers(answer) for answer in answers] == [[2.0 * n] for n in range(10)]
        assert (await mesh.conserved())["parts_retried"] == 10


async def test_a_runtime_that_comes_back_within_the_deadline_serves_what_waits() -> None:
    """The only one dies with a batch; requests that arrive meanwhile wait too."""
    async with serving(Mesh()) as mesh:
        mesh.runtime.is_held = True
        tasks = [asyncio.create_task(mesh.infer(1.0))]
        await mesh.wait_for(lambda: len(mesh.runtime.held) == 1, "the batch")
        await mesh.runtime.kill()
        await asyncio.sleep(0.05)
        tasks.append(asyncio.create_task(mesh.infer(2.0)))
        await asyncio.sleep(0.05)
        mesh.runtime.is_held = False
        mesh.runtime.held.clear()
        await mesh.runtime.start()
        assert [numbers(answer) for answer in await asyncio.gather(*tasks)] == [[2.0], [4.0]]


async def test_a_request_that_kills_every_runtime_is_not_tried_for_ever() -> None:
    """After the second death its caller gets UNAVAILABLE, which may be retried."""
    async with serving(Mesh()) as mesh:
        mesh.runtime.is_held = True
        task = asyncio.create_task(mesh.infer(1.0))
        for _ in range(2):
            await mesh.wait_for(lambda: len(mesh.runtime.held) == 1, "the batch")
            await mesh.runtime.kill()
            mesh.runtime.held.clear()
            await mesh.runtime.start()
        with failing("UNAVAILABLE") as failed:
            await task
        assert failed.error.row.retryable


async def test_a_runtime_that_is_full_for_a_moment_gets_the_batch_again() -> None:
    """OVERLOADED of the runtime is ours to wait out, not the caller's."""
    async with serving(Mesh()) as mesh:
        mesh.runtime.error = MeshError("OVERLOADED", "8 batches are pending")
        task = asyncio.create_task(mesh.infer(1.0))
        await mesh.wait_for(lambda: len(mesh.runtime.batches) >= 3, "some attempts")
        mesh.runtime.error = None
        assert numbers(await task) == [2.0]


async def test_a_version_that_its_runtime_let_go_is_not_ready() -> None:
    """After one more try, MODEL_NOT_READY; health says so."""
    async with serving(Mesh()) as mesh:
        mesh.runtime.models = []
        mesh.runtime.error = MeshError("MODEL_NOT_READY", "tiny 1 is not here")
        with failing("DEADLINE_EXCEEDED"):
            await mesh.client.call("infer", tiny_request(1.0), timeout_s=0.3)
        assert not mesh.service.readiness().ready


async def test_a_silent_fabric_costs_its_share_and_names_itself() -> None:
    """One second of five; the call is cancelled, and the lane goes on with the next."""
    async with serving(Mesh()) as mesh:
        mesh.fabric.is_silent = True
        with failing("DEADLINE_EXCEEDED") as failed:
            await mesh.delay(5)
        assert failed.error.details == {
            "stage": "features",
            "hop": "data_fabric.0-fake0000",
            "deadline_ms": 1_000,
        }
        assert mesh.fabric.cancelled == 1
        with failing("DEADLINE_EXCEEDED") as failed:
            await mesh.client.call(
                "infer", {"model_name": "delay", "rows": [{"hour": 1}]}, timeout_s=0.2
            )
        mesh.fabric.is_silent = False
        assert (await mesh.delay(5)).usage.rows == 1
        await mesh.conserved()


async def test_calls_gather_while_one_is_in_flight_at_the_fabric() -> None:
    """The first call carries one request, the next all that came meanwhile."""
    async with serving(Mesh()) as mesh:
        mesh.fabric.is_silent = True
        first = asyncio.create_task(mesh.delay(1))
        await mesh.wait_for(lambda: len(mesh.fabric.calls) == 1, "the first call")
        others = [asyncio.create_task(mesh.delay(hour)) for hour in range(20)]
        await mesh.wait_for(lambda: mesh.service.pipeline.works.count == 21, "the others")
        mesh.fabric.is_silent = False
        await mesh.fabric.kill()
        await mesh.fabric.start()
        await asyncio.gather(first, *others)
        assert [len(call.items) for call in mesh.fabric.calls] == [1, 21]


async def test_a_fabric_that_has_not_loaded_the_view_yet_is_asked_again() -> None:
    """After its restart VIEW_UNKNOWN means wait; long after it, it is an answer."""
    async with serving(Mesh()) as mesh:
        mesh.fabric.error = MeshError("VIEW_UNKNOWN", "departure 1 is loading")
        task = asyncio.create_task(mesh.delay(5))
        await mesh.wait_for(lambda: len(mesh.fabric.calls) >= 3, "some attempts")
        mesh.fabric.error = None
        assert (await task).usage.rows == 1
        mesh.fabric.error = MeshError("VIEW_UNKNOWN", "no such view")
        mesh.service.pipeline.features._changed_s -= 60.0
        with failing("VIEW_UNKNOWN"):
            await mesh.delay(5)


async def test_with_the_control_plane_dead_everything_is_answered_and_nothing_is_lost() -> None:
    """Receipts wait in the spool and are shipped when it is back, each under its combination."""
    async with serving(Mesh(), without=("control_plane",)) as mesh:
        await asyncio.gather(*(mesh.infer(float(n), id=f"r{n}") for n in range(50)))
        found = await mesh.conserved()
        assert found["infer_answered"] == 50
        assert found["spool_records"] == 51
        assert mesh.service.readiness().degraded
        await mesh.control_plane.start()
        await mesh.wait_for(lambda: len(mesh.control_plane.receipts) == 50, "the shipment")
        assert {row.id for row in mesh.control_plane.receipts} == {f"r{n}" for n in range(50)}
        assert mesh.control_plane.unnamed == 0
        await mesh.wait_for(lambda: mesh.service._spool.unacknowledged() == 0, "the trim")


async def test_a_control_plane_with_a_full_disk_is_asked_again() -> None:
    """DISK_FULL from it loses nothing."""
    async with serving(Mesh()) as mesh:
        mesh.control_plane.error = MeshError("DISK_FULL", "full")
        await mesh.infer(1.0)
        await mesh.wait_for(lambda: mesh.service._shipper.failures > 0, "a refusal")
        mesh.control_plane.error = None
        await mesh.wait_for(lambda: len(mesh.control_plane.receipts) == 1, "the shipment")


async def test_receipts_of_a_killed_orchestrator_are_shipped_by_the_next() -> None:
    """Its file lies in the home with a torn tail; all whole records arrive."""
    mesh = Mesh()
    dead = Segment.create(mesh.home / ".mortise/spool/orchestrator.0-dead-1.spool", 2**20)
    async with serving(Mesh(), without=("control_plane",)) as source:
        await asyncio.gather(*(source.infer(float(n), id=f"old{n}") for n in range(5)))
        current = source.service._spool.current
        assert current is not None
        for content in current.part(100, current.size).contents:
            dead.append(content)
        dead._map[dead.end : dead.end + 12] = b"\x90\0\0\0abcdefgh"
        dead.close()
    async with serving(mesh):
        await mesh.wait_for(lambda: len(mesh.control_plane.receipts) == 5, "the old receipts")
        await mesh.infer(1.0, id="new")
        await mesh.wait_for(lambda: len(mesh.control_plane.receipts) == 6, "the new receipt")
        ids = [row.id for row in mesh.control_plane.receipts]
        assert sorted(ids[:5]) == [f"old{n}" for n in range(5)]
        assert mesh.control_plane.unnamed == 0
        await mesh.wait_for(lambda: not dead.path.exists(), "the removal of the old file")


async def test_a_killed_orchestrators_receipts_do_not_keep_its_successor_from_serving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While they are still being counted requests are answered and nothing is shipped; then the
    old ones are, and before the new."""
    mesh = Mesh()
    dead = Segment.create(mesh.home / ".mortise/spool/orchestrator.0-dead-1.spool", 2**20)
    async with serving(Mesh(), without=("control_plane",)) as source:
        await source.infer(1.0, id="old")
        current = source.service._spool.current
        assert current is not None
        for content in current.part(100, current.size).contents:
            dead.append(content)
        dead.close()
    counted, adopt = asyncio.Event(), SpoolFiles._adopt

    async def adopt_later(files: SpoolFiles, path: Path) -> None:
        await counted.wait()
        await adopt(files, path)

    monkeypatch.setattr(SpoolFiles, "_adopt", adopt_later)
    async with serving(mesh):
        assert numbers(await mesh.infer(1.0, id="new")) == [2.0]
        assert mesh.control_plane.receipts == []
        counted.set()
        await mesh.wait_for(lambda: len(mesh.control_plane.receipts) == 2, "both receipts")
        assert [row.id for row in mesh.control_plane.receipts] == ["old", "new"]


async def fill_the_disk(mesh: Mesh) -> Callable[[], None]:
    """The spool has no file and makes none until what this returns is called. The spare, which is
    made beside serving, is waited for: it would come as new room."""
    spool = mesh.service._spool
    await mesh.wait_for(lambda: spool._spare is not None, "the spare")
    current, spare, room, most = spool.current, spool._spare, spool._room, spool._bytes_max
    spool.current, spool._spare, spool._room, spool._bytes_max = None, None, 0, 0
    spool.fault = "No space left on device"

    def give_back() -> None:
        spool.current, spool._spare, spool._room = current, spare, room
        spool.fault, spool._bytes_max = None, most

    return give_back


async def test_without_room_for_a_receipt_nothing_is_served_and_nothing_computed() -> None:
    """Refused before serving with DISK_FULL; with room again it serves."""
    async with serving(Mesh()) as mesh:
        give_back = await fill_the_disk(mesh)
        with failing("DISK_FULL") as failed:
            await mesh.infer(1.0)
        assert failed.error.row.retryable
        assert not mesh.service.readiness().ready
        assert mesh.runtime.batches == []
        give_back()
        assert numbers(await mesh.infer(1.0)) == [2.0]
        await mesh.conserved()


async def test_an_answer_whose_receipt_cannot_be_written_does_not_leave() -> None:
    """The disk filled while it was computed: the caller gets DISK_FULL, not the answer."""
    async with serving(Mesh()) as mesh:
        mesh.runtime.is_held = True
        task = asyncio.create_task(mesh.infer(1.0))
        await mesh.wait_for(lambda: len(mesh.runtime.held) == 1, "the batch")
        give_back = await fill_the_disk(mesh)
        mesh.runtime.release()
        with failing("DISK_FULL"):
            await task
        give_back()
        await mesh.conserved()


async def test_a_full_queue_refuses_and_names_its_bound() -> None:
    """OVERLOADED with a hint; what was admitted is answered."""
    mesh = Mesh()
    mesh.write_policies(LimitsPolicy(name="tiny", spec=LimitsSpec(queue_rows_max=10)))
    async with serving(mesh):
        mesh.runtime.is_held = True
        tasks = [asyncio.create_task(mesh.infer(float(n))) for n in range(10)]
        await mesh.wait_for(lambda: mesh.service.pipeline.works.count == 10, "ten rows")
        with failing("OVERLOADED") as failed:
            await mesh.infer(1.0)
        assert "queue_rows_max is 10" in failed.error.message
        assert failed.error.retry_after_ms
        mesh.runtime.release()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_counters_conserve_after_a_storm(seed: int) -> None:
    """Answers, errors, cancels, disconnects, deadlines, deaths of both kinds: each request ends
    once, and nothing is left in flight, in the queue, in the bounds or reserved."""
    rng = random.Random(seed)
    mesh = Mesh(runtimes=2)
    mesh.write_policies(BatchingPolicy(name="tiny", spec=BatchingSpec(wait_ms=1.0, rows_max=8)))
    async with serving(mesh):
        ends = 0

        def count(result: Any, error: MeshError | None) -> None:
            nonlocal ends
            ends += 1

        clients = [RpcClient(mesh.client.path, "orchestrator") for _ in range(4)]
        for client in clients:
            await client.connect(5.0)
        for _ in range(400):
            client = rng.choice(clients)
            body: Any = tiny_request(float(rng.randrange(100)), rng.choice((1, 3, 20)))
            if rng.random() < 0.4:
                hours = [{"hour": rng.randrange(-1, 50)} for _ in range(rng.choice((1, 2, 15)))]
                body = {"model_name": rng.choice(("delay", "delay", "none")), "rows": hours}
            deadline_ms = rng.choice((3, 20, 5_000, 5_000, 5_000))
            if client.connected:
                msgid = client.call_nowait("infer", body, count, deadline_ms=deadline_ms)
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.001)))
            chance = rng.random()
            if chance < 0.15:
                client.cancel(msgid)
            elif chance < 0.17:
                await rng.choice(mesh.runtimes).kill_and_start()
            elif chance < 0.18:
                await mesh.fabric.kill_and_start()
            elif chance < 0.19:
                for link in client._links:
                    link.abort("the test")
        for client in clients:  # what was sent before has arrived when this is answered
            await client.call("ping", {})
        pipeline = mesh.service.pipeline
        await mesh.wait_for(
            lambda: pipeline.works.count == 0 and not pipeline._arrived,
            "the end of every request, those that wait for their turn of the loop included",
            8.0,
        )
        found = await mesh.conserved()
        assert found["infer_received"] > 250
        assert found["infer_answered"] > 50
        assert found["infer_cancelled"] > 0
        assert (found["infer_in_flight"], found["queue_rows"]) == (0, 0)
        assert (pipeline._bounds.requests, pipeline._bounds.bytes) == (0, 0)
        assert pipeline._bounds._models == pipeline._bounds._tenants == {}
        assert mesh.service._spool._reserved == 0
        replicas = pipeline.dispatcher.replicas.all
        await mesh.wait_for(lambda: not any(row.batches for row in replicas), "every batch's end")
        await mesh.wait_for(lambda: pipeline._awaited.count == 0, "the end of every call")
        for client in clients:
            await client.close()


async def test_every_record_of_a_request_carries_its_ids() -> None:
    """K7: failures always, successes sampled; a refusal before routing says so with a dash."""
    records: list[dict[str, Any]] = []
    logs.direct(lambda line: records.append(json.loads(line)), service="s", instance="i")
    try:
        async with serving(Mesh()) as mesh:
            for number in range(access_sample_of + 1):
                await mesh.infer(float(number), id=f"r{number}", tenant_id="t")
            with failing("INVALID_REQUEST"):
                await mesh.infer(1.0, id="bad", tenant_id="t", explain=True)
            mesh.runtime.error = MeshError("FORWARD_FAILED", "the forward raised")
            with failing("FORWARD_FAILED"):
                await mesh.infer(1.0, id="unlucky", tenant_id="t\n{}")
    finally:
        logs.undirect()
    access = [row for row in records if row["logger"] == "services.orchestrator.access"]
    assert [row["request_id"] for row in access] == ["r0", f"r{access_sample_of}", "bad", "unlucky"]
    for row in access:
        assert len(row["trace_id"]) == 32
        assert row["model_version"] in ("1", logs.NONE)
    assert access[0]["hops"][1][0] == "model_runtime.0-fake0000"
    assert access[3]["tenant_id"] == "t\n{}"
    assert access[3]["parts"][0]["runtime"] == "model_runtime.0-fake0000"


@pytest.mark.interpreted
async def test_a_defect_in_one_answer_is_internal_and_the_others_are_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that cannot be put together does not take its batch along, nor wait for its deadline."""
    made = replies.conclude

    def broken(work: Work, *rest: Any) -> Any:
        if work.request_id == "bad":
            raise TypeError("a defect")
        return made(work, *rest)

    monkeypatch.setattr(replies, "conclude", broken)
    async with serving(Mesh()) as mesh:
        asked = [mesh.infer(1.0, id=name) for name in ("one", "bad", "two")]
        one, bad, two = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(bad, MeshError)
        assert bad.name == "INTERNAL"
        assert (one.id, two.id) == ("one", "two")
        found = await mesh.conserved()
        assert (found["infer_answered"], found["infer_failed"]) == (2, 1)
    assert "answer_defect" in capsys.readouterr().err
