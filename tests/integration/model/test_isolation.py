"""Bad rows, hangs and the callers beside them, through the whole mesh."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mortise
from benchmarks.misbehaving import SLOW_P99_MS, SLOW_ROW_MS, mesh_with, picky, slow
from mortise.throwaway import Mesh
from services.model_runtime.config import forward_p99_factor, forward_s_min

HUNG_ROWS = 31
LIMIT_S = max(forward_s_min, forward_p99_factor * SLOW_P99_MS / 1_000)
ANSWERED_S_MAX = 1.0
"""After the limit, whoever waited is answered within this."""

assert HUNG_ROWS * SLOW_ROW_MS / 1_000 > LIMIT_S, "these rows are a hang by the model's contract"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """The bench home with `picky` and `slow`."""
    with mesh_with(tmp_path_factory.mktemp("home"), [picky(), slow()]) as mesh:
        yield mesh


def choice(*categories: int) -> dict[str, Any]:
    """A row a category."""
    numbers = np.zeros((len(categories), 2), np.float32)
    return {"numbers": numbers, "category": np.array(categories, np.int64)[:, None]}


def failed(result: mortise.Result) -> dict[int, str]:
    """Error names by row."""
    return {row: item.status.name for row, item in enumerate(result.items) if item.status != "ok"}


def statistics(mesh: Mesh, service: str) -> dict[str, Any]:
    """What a service counts."""
    with mesh.client(service) as client:
        return dict(client.call("statistics").values)


def test_a_row_that_makes_the_forward_raise_fails_alone_in_its_request(mesh: Mesh) -> None:
    """Outputs have the good rows, the row has its error, and both are counted."""
    before = statistics(mesh, "model_runtime")
    with mesh.client() as client:
        result = client.infer("picky", inputs=choice(1, 2, 99, 4, 5, 6, 7, 0))
    assert result.outputs["y"][:, 0].tolist() == [1, 2, 4, 5, 6, 7, 0]
    assert failed(result) == {2: "FORWARD_FAILED"}
    after = statistics(mesh, "model_runtime")
    assert after["rows_isolated"] - before["rows_isolated"] == 1
    assert 0 < after["extra_forwards"] - before["extra_forwards"] <= 4


async def test_a_request_that_makes_the_forward_raise_fails_alone_in_its_batch(mesh: Mesh) -> None:
    """Twenty callers at once, two of them with a category that does not exist."""
    async with mortise.AsyncClient(home=mesh.home) as client:
        # Behind a busy runtime they gather to one batch.
        busy = asyncio.create_task(
            client.infer("sleepy", inputs={"x": np.ones((8, 1), np.float32)})
        )
        calls = [
            client.infer("picky", inputs=choice(number % 8 if number not in (3, 11) else -1))
            for number in range(20)
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        await busy
    for number, result in enumerate(results):
        if number in (3, 11):
            assert isinstance(result, mortise.FORWARD_FAILED)
        else:
            assert isinstance(result, mortise.Result)
            assert result.outputs["y"][0, 0] == number % 8


def test_a_row_that_comes_out_as_nan_fails_alone(mesh: Mesh) -> None:
    """OUTPUT_INVALID for it, numbers for the others."""
    x = np.ones((4, 64), np.float32)
    x[1, 5] = np.nan
    with mesh.client() as client:
        result = client.infer("tiny", inputs={"x": x})
    assert failed(result) == {1: "OUTPUT_INVALID"}
    assert np.isfinite(result.outputs["y"]).all()


async def test_a_forward_that_hangs_is_ended_at_its_limit_and_the_others_are_answered(
    mesh: Mesh,
) -> None:
    """Its caller learns model and limit; requests of other models that waited behind it are
    answered by the successor, none later than a second after the limit; the log says why."""
    async with mortise.AsyncClient(home=mesh.home) as client:
        await client.infer("slow", inputs={"x": np.ones((1, 1), np.float32)})
        begun_s = time.monotonic()
        hung = asyncio.create_task(
            client.infer("slow", inputs={"x": np.ones((HUNG_ROWS, 1), np.float32)}, timeout_s=10)
        )
        await asyncio.sleep(0.2)
        waiting = [client.infer("sleepy", inputs={"x": [[float(n)]]}) for n in range(10)]
        results = await asyncio.gather(*waiting)
        waited_s = time.monotonic() - begun_s
        with pytest.raises(mortise.FORWARD_FAILED) as failure:
            await hung
    assert [result.outputs["y"][0, 0] for result in results] == [2.0 * n for n in range(10)]
    assert waited_s < LIMIT_S + ANSWERED_S_MAX
    assert f"its limit is {LIMIT_S:.1f} s" in failure.value.message
    assert "model slow version 1" in failure.value.message
    records = await asyncio.to_thread(exits, mesh.home)
    assert [record["child"] for record in records] == ["model_runtime 0"]
    assert records[0]["ending"].startswith("unfit: model slow version 1: a forward of a batch of")


def exits(home: Path) -> list[dict[str, Any]]:
    """What the supervisor's log, which is written behind, says of children that ended."""
    ends_s = time.monotonic() + 5.0
    found: list[dict[str, Any]] = []
    while not found and time.monotonic() < ends_s:
        time.sleep(0.05)
        lines = (home / ".mortise/log/supervisor.0.jsonl").read_text().splitlines()
        found = [row for line in lines if (row := json.loads(line))["event"] == "child_exited"]
    return found
