"""Token models through the whole orchestrator, with a fake runtime that adds up the ids of each
row: how requests of unequal length gather, are cut, refused, counted and put together again."""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from contracts.errors import MeshError
from contracts.execution import Execute, Executed
from contracts.inference import InferenceRequest, Tensor
from contracts.policies import BatchingPolicy, BatchingSpec, LimitsPolicy, LimitsSpec
from services.orchestrator.config import cost_batches_min
from tests.simulation.orchestrator_mesh import Mesh, failing, now_us, numbers, packed, serving
from tests.unit.services.orchestrator.making import token_contract

TOKENS_MAX, SPLIT = 40, 10


def compute(batch: Execute) -> Executed:
    """The sum of each row's ids that count."""
    ids = struct.unpack(f"<{sum(batch.lengths)}i", batch.tensors[0].data)  # type: ignore[arg-type]
    mask: Sequence[int] = [1] * len(ids)
    if len(batch.tensors) > 1:
        mask = bytes(batch.tensors[1].data)  # type: ignore[arg-type]
    sums, start = [], 0
    for length in batch.lengths:
        pairs = zip(ids[start : start + length], mask[start : start + length], strict=True)
        sums.append(float(sum(one * counts for one, counts in pairs)))
        start += length
    output = Tensor(name="y", datatype="FP32", shape=[len(sums), 1], data=packed(sums))
    longest = max(batch.lengths) * len(batch.lengths)
    forward_us = 1_000 + 10 * len(batch.lengths) + longest
    return Executed([output], [], {}, now_us(), now_us(), 0, 0, forward_us, 0, 1)


def token_mesh(**spec: Any) -> Mesh:
    """With `wordy` and its batching policy."""
    mesh = Mesh()
    mesh._stage("wordy", token_contract())
    mesh.runtime.models.append(mesh.loaded[-1])
    mesh.runtime.compute = compute
    limits = {"tokens_max": TOKENS_MAX, "tokens_split": SPLIT, "wait_ms": 1_000.0, **spec}
    mesh.policies.append(BatchingPolicy(name="wordy", spec=BatchingSpec(**limits)))
    return mesh


async def ask(mesh: Mesh, *rows: list[int], **options: Any) -> Any:
    """Ask `wordy`."""
    body = InferenceRequest(model_name="wordy", input_ids=list(rows), **options)
    return await mesh.client.call("infer", body)


async def gathered(mesh: Mesh, *lengths: int) -> list[Any]:
    """One request of each length, in order, behind a batch that is being computed; the answers.
    Afterwards `mesh.runtime.batches[1:]` are those that they came to."""
    mesh.runtime.is_held = True
    first = asyncio.create_task(ask(mesh, [1]))
    await mesh.wait_for(lambda: len(mesh.runtime.held) == 1, "the first batch")
    tasks = [asyncio.create_task(ask(mesh, [1] * length)) for length in lengths]
    in_flight = mesh.service.pipeline.works
    await mesh.wait_for(lambda: in_flight.count == 1 + len(lengths), "every request")
    mesh.runtime.release()
    await first
    return await asyncio.gather(*tasks)


async def test_requests_of_unequal_length_share_a_batch_and_keep_their_answers() -> None:
    """Unpadded on the wire, each answer its own; tokens are counted in answer and receipt."""
    async with serving(token_mesh()) as mesh:
        answers = await gathered(mesh, 3, 8, 1, 5)
        assert [numbers(answer) for answer in answers] == [[3.0], [8.0], [1.0], [5.0]]
        assert [answer.usage.tokens_in for answer in answers] == [3, 8, 1, 5]
        assert [batch.lengths for batch in mesh.runtime.batches] == [[1], [3, 8, 1, 5]]
        plane = mesh.control_plane
        await mesh.wait_for(lambda: len(plane.receipts) == 5, "the receipts")
        assert sorted(receipt.tokens_in for receipt in plane.receipts) == [1, 1, 3, 5, 8]
        await mesh.conserved()


async def test_padding_is_counted_beside_real_tokens() -> None:
    """Of 3, 8, 1 and 5 together, 17 are real and 15 padding; the first request's one is real."""
    async with serving(token_mesh()) as mesh:
        await gathered(mesh, 3, 8, 1, 5)
        metrics = await mesh.client.call("metrics", {})
        (family,) = [one for one in metrics.metrics if one.name == "ai_batch_tokens_total"]
        counts = {one.labels[-1]: one.value for one in family.series}
        assert counts == {"real": 18.0, "padding": 15.0}


async def test_a_batch_is_full_by_its_padded_tokens() -> None:
    """Four rows of 10 are 40; the fifth waits for the next batch, whatever rows_max is."""
    async with serving(token_mesh()) as mesh:
        await gathered(mesh, 10, 10, 2, 10, 10)
        assert [batch.lengths for batch in mesh.runtime.batches[1:]] == [[10, 10, 2, 10], [10]]


async def test_full_batches_do_not_wait_for_the_window() -> None:
    """wait_ms is a second; 40 tokens behind a busy runtime leave at once when it has a credit."""
    async with serving(token_mesh()) as mesh:
        mesh.runtime.is_held = True
        first = asyncio.create_task(ask(mesh, [1]))
        await mesh.wait_for(lambda: len(mesh.runtime.held) == 1, "the first batch")
        more = [asyncio.create_task(ask(mesh, [1] * 10)) for _ in range(4)]
        await mesh.wait_for(lambda: len(mesh.runtime.held) == 2, "the second batch", 0.5)
        mesh.runtime.release()
        await asyncio.gather(first, *more)


async def test_a_long_request_does_not_block_short_ones() -> None:
    """Over tokens_split it goes by itself; the short ones behind it go together before."""
    async with serving(token_mesh()) as mesh:
        answers = await gathered(mesh, 2, 30, 3, 4)
        assert [numbers(answer) for answer in answers] == [[2.0], [30.0], [3.0], [4.0]]
        assert [batch.lengths for batch in mesh.runtime.batches[1:]] == [[2, 3, 4], [30]]


async def test_a_request_over_tokens_max_is_refused_with_the_limit() -> None:
    """INPUT_TOO_LONG names limit, received and remedy; counted as refused."""
    async with serving(token_mesh()) as mesh:
        await ask(mesh, [1] * TOKENS_MAX)
        with failing("INPUT_TOO_LONG") as failed:
            await ask(mesh, [1], [1] * (TOKENS_MAX + 1))
        assert failed.error.details == {"tokens_max": 40, "received": 41}
        assert "shorten it" in failed.error.message
        assert (await mesh.conserved())["infer_refused"] == 1


async def test_a_request_over_tokens_max_runs_alone_where_the_policy_allows_it() -> None:
    """`oversize` alone: a batch of one row."""
    async with serving(token_mesh(oversize="alone")) as mesh:
        answers = await gathered(mesh, 2, 55, 3)
        assert numbers(answers[1]) == [55.0]
        assert [batch.lengths for batch in mesh.runtime.batches[1:]] == [[2, 3], [55]]


async def test_a_request_of_many_rows_is_cut_and_put_together_again() -> None:
    """By rows, by tokens and at its long rows; masks are cut with the ids, and what they mask is
    not counted."""
    rows = [[number] * (1 + number % 9) for number in range(60)]
    rows[7] = [1] * 35
    mask = [[1] * len(row) for row in rows]
    mask[50] = [0] * (len(rows[50]) - 1) + [1]
    async with serving(token_mesh(rows_max=8)) as mesh:
        answer = await ask(mesh, *rows, attention_mask=mask)
        expected = [float(sum(row)) for row in rows]
        expected[50] = 50.0
        assert numbers(answer) == expected
        assert answer.usage.tokens_in == sum(map(sum, mask))
        for batch in mesh.runtime.batches:
            assert len(batch.lengths) <= 8
            assert len(batch.lengths) * max(batch.lengths) <= TOKENS_MAX


async def test_one_of_four_in_a_batch_is_cancelled_and_the_others_answer() -> None:
    """Its ids travel on, its answer is dropped."""
    async with serving(token_mesh()) as mesh:
        mesh.runtime.is_held = True
        tasks = [asyncio.create_task(ask(mesh, [1] * length)) for length in (2, 3, 4, 5)]
        await mesh.wait_for(lambda: len(mesh.runtime.held) == 1, "the batch")
        assert mesh.runtime.batches[0].lengths == [2, 3, 4, 5]
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)
        mesh.runtime.release()
        others = [tasks[0], tasks[2], tasks[3]]
        assert [numbers(answer) for answer in await asyncio.gather(*others)] == [[2], [4], [5]]
        found = await mesh.conserved()
        assert (found["infer_cancelled"], found["infer_answered"]) == (1, 3)


async def test_a_daily_quota_counts_tokens() -> None:
    """Not rows: 12 and 5 of 15 do not fit, 12 and 3 do."""
    mesh = token_mesh()
    mesh.write_policies(LimitsPolicy(name="t", spec=LimitsSpec(tokens_per_day=15)))
    async with serving(mesh):
        await ask(mesh, [1] * 12, tenant_id="t")
        with failing("QUOTA_EXCEEDED") as failed:
            await ask(mesh, [1] * 5, tenant_id="t")
        assert "12 tokens or rows used today (UTC) and 5 more" in failed.error.message
        await ask(mesh, [1] * 3, tenant_id="t")


async def test_the_cost_of_a_token_is_learnt_and_shown() -> None:
    """1,000 µs a batch, 10 a row, 1 a padded token; `tiny`, which has none, shows no such thing."""
    async with serving(token_mesh()) as mesh:
        for number in range(4 * cost_batches_min):
            rows = [[1] * (1 + number % 5)] * (1 + number % 7)
            await ask(mesh, *rows)
        found = await mesh.statistics()
        assert abs(found["cost_batch_us wordy 1"] - 1_000) < 20
        assert abs(found["cost_row_us wordy 1"] - 10) < 2
        assert abs(found["cost_token_us wordy 1"] - 1) < 0.3
        assert not [name for name in found if name.startswith("cost_token_us tiny")]


async def test_what_the_runtime_failed_is_not_counted_in_tokens() -> None:
    """Of two rows the second fails: its three ids are nobody's."""
    mesh = token_mesh()

    def fail_second(batch: Execute) -> Executed:
        error = MeshError("FORWARD_FAILED", "it raised").body("0" * 32)
        return replace(compute(batch), errors={1: error})

    mesh.runtime.compute = fail_second
    async with serving(mesh):
        answer = await ask(mesh, [1, 1], [1, 1, 1])
        assert numbers(answer) == [2.0]
        assert (answer.usage.rows, answer.usage.tokens_in) == (1, 2)
