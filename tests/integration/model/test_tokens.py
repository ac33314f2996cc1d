"""A token model through a whole mesh: `wordy`, an encoder, with a policy of small limits, and
`wordier`, the same pack under another name, which takes oversize rows alone."""

import asyncio
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import mortise
from benchmarks.misbehaving import EXAMPLE, policy_text
from benchmarks.tokens import tokens_of
from mortise.throwaway import Mesh
from services.jobs.bench_tokens import VOCABULARY, wordy
from services.jobs.pack_writer import write_pack

ROOT = Path(__file__).parents[3]
TOLERANCE = 1e-5
TOKENS_MAX = 512
BATCHING = """
[[policy]]
kind = "batching"
name = "wordy"
spec = { rows_max = 8, tokens_max = 512, tokens_split = 100 }

[[policy]]
kind = "sla"
name = "*"
spec = { p99_ms = 4000.0 }
"""
"""These tests are about batches, so that nobody is refused for the time it would wait."""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """The bench home with both."""
    home = tmp_path_factory.mktemp("home") / "home"
    shutil.copytree(EXAMPLE, home, ignore=shutil.ignore_patterns(".mortise"))
    draft = wordy()
    draft = replace(draft, contract=msgspec.structs.replace(draft.contract, name="wordier"))
    text = policy_text("wordier", "1", write_pack(draft, home / "models"), 8)
    limits = 'rows_max = 8, tokens_max = 512, tokens_split = 100, oversize = "alone"'
    with (home / "policies.toml").open("a") as policies:
        policies.write(BATCHING + text.replace("rows_max = 8", limits))
    with Mesh(home) as mesh:
        yield mesh


def ids(*lengths: int, seed: int = 1) -> list[list[int]]:
    """Rows of these lengths."""
    chance = random.Random(seed)
    return [[chance.randrange(VOCABULARY) for _ in range(length)] for length in lengths]


def apart(one: Any, other: Any) -> float:
    """The largest difference."""
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def test_rows_of_mixed_lengths_are_cut_padded_and_put_together_again(mesh: Mesh) -> None:
    """Fourteen rows, some over tokens_split: each answer is what the row gets alone, within 1e-5;
    the ids are counted."""
    rows = ids(3, 40, 7, 300, 90, 12, 9, 8, 1, 8, 512, 8, 8, 101)
    with mesh.client() as client:
        together = client.infer("wordy", input_ids=rows)
        alone = [client.infer("wordy", input_ids=row).outputs["y"][0] for row in rows]
    assert together.usage.rows == len(rows)
    assert together.usage.tokens_in == sum(map(len, rows))
    assert apart(together.outputs["y"], alone) <= TOLERANCE
    assert apart(alone[0], alone[1]) > 0.01


async def test_answers_keep_to_their_callers_over_random_lengths(mesh: Mesh) -> None:
    """Two hundred requests at once, of one to four rows of 1 to 200 ids: batches of every shape,
    and each caller has the numbers of its rows alone."""
    chance = random.Random(3)
    lengths = [
        [round(200 ** chance.random()) for _ in range(chance.choice((1, 1, 2, 4)))]
        for _ in range(200)
    ]
    requests = [ids(*each, seed=number) for number, each in enumerate(lengths)]
    async with mortise.AsyncClient(home=mesh.home) as client:
        found = await asyncio.gather(*(client.infer("wordy", input_ids=each) for each in requests))
        for each, result in list(zip(requests, found, strict=True))[::10]:
            for row, answer in zip(each, result.outputs["y"], strict=True):
                alone = await client.infer("wordy", input_ids=row)
                assert apart(answer, alone.outputs["y"][0]) <= TOLERANCE


async def test_short_requests_do_not_wait_for_the_long_one_before_them(mesh: Mesh) -> None:
    """Behind a busy runtime, a request over tokens_split and then short ones of one length: no
    batch is padded, as the short ones' would be if it were the long one's."""
    async with mortise.AsyncClient(home=mesh.home) as client:
        await client.infer("wordy", input_ids=ids(8))
        before = tokens_of(mesh.home)
        busy = asyncio.create_task(client.infer("sleepy", inputs={"x": np.ones((32, 1), "f4")}))
        await asyncio.sleep(0.002)
        long = asyncio.create_task(client.infer("wordy", input_ids=ids(TOKENS_MAX)))
        short = [asyncio.create_task(client.infer("wordy", input_ids=ids(4))) for _ in range(6)]
        await asyncio.gather(*short, long, busy)
    after = tokens_of(mesh.home)
    assert after["real"] - before["real"] == TOKENS_MAX + 6 * 4
    assert after["padding"] == before["padding"]


def test_an_oversize_row_is_refused_or_runs_alone_by_policy(mesh: Mesh) -> None:
    """513 ids: INPUT_TOO_LONG with limit, received and remedy; of `wordier`, an answer. 4,097 are
    more than the model itself takes."""
    row = ids(TOKENS_MAX + 1)
    with mesh.client() as client:
        with pytest.raises(mortise.INPUT_TOO_LONG) as refused:
            client.infer("wordy", input_ids=row)
        result = client.infer("wordier", input_ids=row)
        with pytest.raises(mortise.INPUT_TOO_LONG, match="row_tokens_max 4096"):
            client.infer("wordier", input_ids=ids(4_097))
    assert refused.value.details == {"tokens_max": 512, "received": 513}
    assert 'oversize = "alone"' in str(refused.value)
    assert result.usage.tokens_in == TOKENS_MAX + 1


def test_what_is_not_of_the_vocabulary_is_refused_at_the_door(mesh: Mesh) -> None:
    """And a mask of another shape, and tensors, which it does not take."""
    with mesh.client() as client:
        forms: dict[str, dict[str, Any]] = {
            "ids from 0 to 511, received 512": {"input_ids": [[512]]},
            "attention_mask has 1 rows, input_ids has 2": {
                "input_ids": [[1], [2]],
                "attention_mask": [[1]],
            },
            "wordy takes input_ids, received inputs": {"inputs": {"x": [[1.0]]}},
        }
        for words, form in forms.items():
            with pytest.raises(mortise.INVALID_REQUEST, match=words):
                client.infer("wordy", **form)


def test_masked_ids_have_no_part_in_an_answer(mesh: Mesh) -> None:
    """Nor in what is counted: rows that a caller has padded itself, as a numpy array."""
    padded = np.array([[5, 6, 7, 0, 0], [1, 2, 3, 4, 5]])
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    with mesh.client() as client:
        masked = client.infer("wordy", input_ids=padded, attention_mask=mask)
        bare = client.infer("wordy", input_ids=[[5, 6, 7], [1, 2, 3, 4, 5]])
    assert apart(masked.outputs["y"], bare.outputs["y"]) <= TOLERANCE
    assert (masked.usage.tokens_in, bare.usage.tokens_in) == (8, 8)


async def test_one_of_four_in_a_batch_is_cancelled_and_the_others_answer(mesh: Mesh) -> None:
    """They had gathered behind a busy runtime."""
    async with mortise.AsyncClient(home=mesh.home) as client:
        busy = asyncio.create_task(client.infer("sleepy", inputs={"x": np.ones((32, 1), "f4")}))
        await asyncio.sleep(0.002)
        rows = ids(3, 5, 7, 9)
        tasks = [asyncio.create_task(client.infer("wordy", input_ids=row)) for row in rows]
        await asyncio.sleep(0.004)
        tasks[1].cancel()
        results: list[Any] = await asyncio.gather(*tasks, busy, return_exceptions=True)
        assert isinstance(results[1], asyncio.CancelledError)
        for index in (0, 2, 3):
            alone = await client.infer("wordy", input_ids=rows[index])
            assert apart(results[index].outputs["y"], alone.outputs["y"]) <= TOLERANCE


def test_statistics_show_what_a_token_costs(mesh: Mesh) -> None:
    """Of `wordy`, which has tokens, and of no other model."""
    with mesh.client() as client:
        for length in (5, 50, 100, 200, 300, 400, 450, 500):
            client.infer("wordy", input_ids=ids(length))
        found = dict(client.call("statistics").values)
    assert found["cost_token_us wordy 1"] > 0
    assert not [name for name in found if name.startswith("cost_token_us sleepy")]


def test_the_command_asks_and_benches_a_token_model(mesh: Mesh) -> None:
    """`mortise infer --input-ids` and `mortise bench`, which makes up ids of its own."""

    def run(*line: str) -> Any:
        command = [sys.executable, "-m", "mortise", *line, "--home", str(mesh.home), "--json"]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    assert run("infer", "wordy", "--input-ids", "[1, 2, 3]")["usage"]["tokens_in"] == 3
    load = run("bench", "--model", "wordy", "--rate", "20", "--seconds", "2")["load"]
    assert load["sent"] == 40
    assert load["failures"].keys() <= {"OVERLOADED"}
