"""More and fewer runtimes while the mesh serves: `mortise replicas`."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mortise
from benchmarks.large import make_home
from mortise.throwaway import Mesh
from services.jobs.bench_packs import sleepy, tiny
from supervisor import run

ROOT = Path(__file__).parents[3]
REPLICAS_MAX = 3
CALLERS = 8
WHILE_S = 1.0
"""Of answers by so many runtimes."""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """`tiny` and `sleepy` on as many runtimes as run: one of three."""
    home = make_home(
        tmp_path_factory.mktemp("home") / "h",
        [tiny(), sleepy()],
        replicas_max=REPLICAS_MAX,
        standby=False,
    )
    with Mesh(home) as mesh:
        yield mesh


def ask(mesh: Mesh, count: int) -> tuple[int, Any]:
    """`mortise replicas COUNT`: exit code, and JSON or what it said on standard error."""
    words = ["replicas", str(count), "--home", str(mesh.home), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "mortise", *words],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.returncode == 0 else done.stderr


def runtimes(mesh: Mesh) -> dict[int, int]:
    """Index → pid of the runtimes that run."""
    rows = run.status(mesh.home)["children"]
    return {row["index"]: row["pid"] for row in rows if row["service"] == "model_runtime"}


async def test_runtimes_come_and_go_and_no_request_fails(mesh: Mesh) -> None:
    """1 → 3 → 1 while eight callers ask: each answer is right, and each runtime computed some."""
    over = asyncio.Event()

    async def caller(client: mortise.AsyncClient, number: float) -> None:
        while not over.is_set():
            result = await client.infer("sleepy", inputs={"x": np.full((1, 1), number, "f4")})
            assert result.outputs["y"][0, 0] == 2 * number

    async with mortise.AsyncClient(home=mesh.home) as client, asyncio.TaskGroup() as callers:
        for number in range(CALLERS):
            callers.create_task(caller(client, float(number)))
        code, found = await asyncio.to_thread(ask, mesh, REPLICAS_MAX)
        assert code == 0, found
        assert [row["index"] for row in found["started"]] == [1, 2]
        assert sorted(runtimes(mesh)) == [0, 1, 2]
        await asyncio.sleep(WHILE_S)
        computed = await asyncio.to_thread(batches, mesh)
        code, found = await asyncio.to_thread(ask, mesh, 1)
        assert (code, found) == (0, {"replicas": 1, "started": []})
        assert sorted(runtimes(mesh)) == [0]
        await asyncio.sleep(WHILE_S)
        over.set()
    assert all(count > 0 for count in computed), computed


def batches(mesh: Mesh) -> list[int]:
    """What each runtime has computed."""
    counts = []
    for index in range(REPLICAS_MAX):
        path = mesh.home / f".mortise/run/model_runtime.{index}.sock"
        with mortise.Client(path, service="model_runtime") as client:
            values = client.call("statistics").values
        counts.append(int(values["batches"]))
    return counts


@pytest.mark.parametrize("count", [0, REPLICAS_MAX + 1])
def test_more_than_the_sockets_is_refused_with_the_limit(mesh: Mesh, count: int) -> None:
    """None and one above the most: the message names the limit and the key."""
    code, said = ask(mesh, count)
    assert code == 1
    assert f"{count} replicas asked for, 1 to {REPLICAS_MAX} can run" in said
    assert "replicas_max in mortise.toml" in said
