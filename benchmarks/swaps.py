"""Swapping a model under load: `promote` and `rollback` in turn, every answer from one version.

`python -m benchmarks.swaps [--swaps 100] [--rate 1000] [--pause 0.5] [--note TEXT] [--out FILE]`
serves `tiny` in an open loop from one client process. Each `promote` is of a version with weights
of its own, which is loaded and warmed for it; each `rollback` goes back to the first, and the other
one is no longer deployed. An answer counts when its version, its weights digest and its numbers
belong together. Compared are the p99 of swaps and of the pauses between them; printed is also how
the runtime's private memory grows from swap to swap after the tenth, and what a request takes one
client before the first swap and after the last. Exit code 1 when a request failed, an answer was
mixed, or memory grew.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.failing import shape
from benchmarks.generator import row_of
from benchmarks.swap_load import SwapLoad
from contracts.control import Apply, Promote, Publish, Rollback
from contracts.inference import InferenceRequest, Tensor
from contracts.policies import DeployedVersion, DeploymentPolicy, DeploymentSpec
from mortise.throwaway import Mesh
from services.jobs.bench_packs import tiny
from services.jobs.machine import describe_machine
from services.jobs.pack_writer import Draft, write_pack
from shared.packs import read_manifest
from shared.rpc.client import RpcClient
from supervisor import run

EXAMPLE = Path(__file__).parents[1] / "examples" / "bench"
STEADY_S = 5.0
AFTER_S = 0.3
"""Of a swap: what its end still costs, the standbys that follow included."""
PAUSE_S = 0.5
"""Between two swaps: the machine is shared and its speed changes, so the steady state that a swap
is compared with is the one beside it."""
WARM_SWAPS = 10
ALONE = 2_000
"""Requests of one client, before and after."""
SLOPE_KIB_MAX = 1_024.0
RATIO_MAX = 1.3


def other_tiny(number: int = 0) -> Draft:
    """The same network with its last layer scaled: other numbers for the same input."""
    draft = tiny()
    scale = np.float32(-1 - number / 10)
    tensors = {
        name: array * scale if name.startswith("layers.1.") else array
        for name, array in draft.tensors.items()
    }
    return replace(draft, tensors=tensors)


def expected(draft: Draft) -> list[float]:
    """The network of a draft for the request that is sent, in double precision."""
    weights = {name: array.astype(np.float64) for name, array in draft.tensors.items()}
    x = np.frombuffer(row_of(0), "<f4").astype(np.float64)
    hidden = np.maximum(weights["layers.0.weight"] @ x + weights["layers.0.bias"], 0)
    return list(weights["layers.1.weight"] @ hidden + weights["layers.1.bias"])


def runtime_kib(home: Path) -> int:
    """Private memory of the runtime's active process."""
    rows = run.status(home)["children"]
    return shape(next(row["pid"] for row in rows if row["service"] == "model_runtime")).private_kib


async def swap(control: RpcClient, number: int, versions: list[str]) -> None:
    """There by `promote`, back by `rollback`."""
    if number % 2:
        await control.call("rollback", Rollback(model="tiny"), timeout_s=60.0)
    else:
        promote = Promote(model="tiny", version=versions[number // 2])
        await control.call("promote", promote, timeout_s=60.0)


async def deploy_first(control: RpcClient) -> None:
    """Nobody asks for the other versions any more."""
    only = DeploymentPolicy(
        name="tiny", spec=DeploymentSpec(versions=[DeployedVersion(version="1")])
    )
    await control.call("apply", Apply(policies=[only], author="operator", reason="swapped back"))


async def request_us(mesh: Mesh) -> float:
    """The median of one client's requests, the first half left out."""
    client = RpcClient(mesh.socket(), "orchestrator")
    await client.connect(5.0)
    x = Tensor(name="x", datatype="FP32", shape=[1, 64], data=memoryview(row_of(0)))
    body, taken_s = InferenceRequest(model_name="tiny", inputs=[x]), []
    for _ in range(ALONE):
        begun_s = time.monotonic()
        await client.call("infer", body)
        taken_s.append(time.monotonic() - begun_s)
    await client.close()
    return round(statistics.median(taken_s[ALONE // 2 :]) * 1e6, 1)


async def measure(
    mesh: Mesh, digests: list[str], swaps: int, rate: float, pause_s: float
) -> dict[str, Any]:
    """The whole run; everything that is claimed."""
    control = RpcClient(mesh.socket("control_plane"), "control_plane")
    await control.connect(5.0)
    first = await first_digest(mesh)
    known = {"1": (_weights(mesh, first), expected(tiny()))}
    versions = []
    for number, digest in enumerate(digests):
        versions.append((await control.call("publish", Publish(digest=digest))).version)
        known[versions[-1]] = (_weights(mesh, digest), expected(other_tiny(number)))
    before_us = await request_us(mesh)
    load = SwapLoad(mesh.socket(), rate)
    await load.open()
    await asyncio.sleep(STEADY_S)
    latencies_s = load.answers.latencies_s
    memory_kib: list[int] = []
    durations_ms: list[float] = []
    swapping: list[tuple[int, int]] = []
    steady: list[tuple[int, int]] = []
    for number in range(swaps):
        begun_s, began = time.monotonic(), len(latencies_s)
        await swap(control, number, versions)
        durations_ms.append(round((time.monotonic() - begun_s) * 1e3, 1))
        if number % 2:
            await deploy_first(control)
        await asyncio.sleep(min(AFTER_S, pause_s))
        swapping.append((began, len(latencies_s)))
        await asyncio.sleep(pause_s)
        steady.append((swapping[-1][1], len(latencies_s)))
        memory_kib.append(await asyncio.to_thread(runtime_kib, mesh.home))
    await load.stop()
    await control.close()
    after_us = await request_us(mesh)
    answers = load.judge(known)
    steady_ms, swapping_ms = answers.p99_ms(steady), answers.p99_ms(swapping)
    return {
        "swaps": swaps,
        "rate_per_s": rate,
        "sent": answers.sent,
        "failures": dict(answers.failures),
        "mixed": answers.mixed,
        "answers_of_the_first": answers.versions["1"],
        "versions_that_answered": len(answers.versions),
        "p99_ms_steady": steady_ms,
        "p99_ms_swapping": swapping_ms,
        "p99_ratio": round(swapping_ms / steady_ms, 2),
        "promote_ms_median": sorted(durations_ms[::2])[len(durations_ms[::2]) // 2],
        "rollback_ms_median": sorted(durations_ms[1::2])[len(durations_ms[1::2]) // 2],
        "request_us": {"before": before_us, "after": after_us},
        "request_us_ratio": round(after_us / before_us, 3),
        "private_kib": memory_kib,
        "private_kib_per_swap": slope(memory_kib[WARM_SWAPS:]),
    }


async def first_digest(mesh: Mesh) -> str:
    """Of the version that is deployed."""
    client = RpcClient(mesh.socket(), "orchestrator")
    await client.connect(5.0)
    models = (await client.call("models", {})).models
    await client.close()
    found: str = next(row.digest for row in models if (row.name, row.version) == ("tiny", "1"))
    return found


def slope(values: list[int]) -> float:
    """Of a straight line through the values; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    return round(float(np.polyfit(np.arange(len(values)), values, 1)[0]), 1)


def _weights(mesh: Mesh, digest: str) -> str:
    return read_manifest(mesh.home / "models", digest).weights


def run_swaps(swaps: int, rate: float, pause_s: float = PAUSE_S) -> dict[str, Any]:
    """On a mesh of its own."""
    with tempfile.TemporaryDirectory(prefix="mob", dir="/tmp") as folder:
        home = Path(folder) / "home"
        shutil.copytree(EXAMPLE, home, ignore=shutil.ignore_patterns(".mortise"))
        count = (swaps + 1) // 2
        digests = [write_pack(other_tiny(number), home / "models") for number in range(count)]
        with Mesh(home) as mesh, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(measure(mesh, digests, swaps, rate, pause_s))


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swaps")
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--rate", type=float, default=1_000.0)
    parser.add_argument("--pause", type=float, default=PAUSE_S, help="seconds between two swaps")
    parser.add_argument("--note", default="", help="kept with the figures")
    parser.add_argument("--out", type=Path, default=None, help="write the result here too")
    options = parser.parse_args()
    load_before = round(os.getloadavg()[0], 1)
    found = run_swaps(options.swaps, options.rate, options.pause)
    row = {
        "what": "promote and rollback of `tiny` under an open loop",
        "command": f"python -m benchmarks.swaps --swaps {options.swaps} --rate {options.rate:g}"
        f" --pause {options.pause:g}",
        "goals": {"failed": 0, "p99_ratio": RATIO_MAX, "private_kib_per_swap": SLOPE_KIB_MAX},
        **found,
        "machine": describe_machine() | {"load_average_before": load_before},
        "note": options.note,
    }
    text = json.dumps(row, indent=1, ensure_ascii=False)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    is_kept = not found["failures"] and not found["mixed"]
    return 0 if is_kept and found["private_kib_per_swap"] < SLOPE_KIB_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
