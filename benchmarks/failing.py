"""Thousands of failing requests: the processes keep their shape.

`python -m benchmarks.failing [--requests 10000] [--note TEXT] [--out FILE]` sends requests that
fail in each way a row can (the forward raises; NaN comes out; both beside good rows) and twice as
many good ones, which have to be answered, 32 at a time through a whole mesh. Before them a fifth as
many warm it. Printed: private memory, descriptors and threads of runtime and orchestrator before,
every tenth, and after. Exit code 1 when anything grew.
"""

import argparse
import asyncio
import json
import os
import struct
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.misbehaving import mesh_with, picky
from contracts.errors import MeshError
from contracts.inference import InferenceRequest, Tensor
from mortise.throwaway import Mesh
from services.jobs.machine import describe_machine
from shared.rpc.client import RpcClient
from supervisor import run

SERVICES = ("model_runtime", "orchestrator")
CONCURRENCY = 32
LOOKS = 10
EXPECTED = {"FORWARD_FAILED", "OUTPUT_INVALID", "one row of several"}
slack_kib = 4 * 1024
"""Private memory varies by this much with what the allocator keeps."""
slack_descriptors = 2
_page_kib = os.sysconf("SC_PAGE_SIZE") // 1024
_nan = float("nan")


@dataclass(frozen=True)
class Shape:
    """What must not grow."""

    private_kib: int
    descriptors: int
    threads: int


def shape(pid: int) -> Shape:
    """Of a process now. Private is resident minus shared (proc(5), statm): the spool is mapped."""
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return Shape(
        private_kib=(int(resident) - int(shared)) * _page_kib,
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=len(os.listdir(f"/proc/{pid}/task")),
    )


def picky_request(categories: list[int]) -> InferenceRequest:
    """A row a category."""
    rows = len(categories)
    return InferenceRequest(
        model_name="picky",
        inputs=[
            tensor("numbers", "FP32", [rows, 2], struct.pack(f"<{2 * rows}f", *[1.0] * 2 * rows)),
            tensor("category", "INT64", [rows, 1], struct.pack(f"<{rows}q", *categories)),
        ],
    )


def tiny_request(first: list[float]) -> InferenceRequest:
    """Rows of 64 numbers, of which the first is given."""
    rows = [[number, *[0.5] * 63] for number in first]
    data = b"".join(struct.pack("<64f", *row) for row in rows)
    return InferenceRequest(model_name="tiny", inputs=[tensor("x", "FP32", [len(rows), 64], data)])


def tensor(name: str, datatype: Any, dims: list[int], data: bytes) -> Tensor:
    """One input."""
    return Tensor(name=name, datatype=datatype, shape=dims, data=memoryview(data))


FAILING = (
    picky_request([99]),
    picky_request([1, 2, -1, 4, 5, 6, 7, 0]),
    tiny_request([_nan]),
    tiny_request([1.0, 2.0, _nan, 4.0]),
)
GOOD = (picky_request([3]), tiny_request([1.0]))
"""Each failing request is followed by both: a model that fails for half of its callers is taken
out by its breaker."""


async def fail(client: RpcClient, count: int, first: int) -> Counter[str]:
    """`count` requests from number `first` on; how they ended."""
    ends: Counter[str] = Counter()

    async def ask(numbers: range) -> None:
        for number in numbers:
            try:
                answer = await client.call("infer", FAILING[number % len(FAILING)])
            except MeshError as error:
                ends[error.name] += 1
            else:
                failed = [item for item in answer.items or [] if item.status != "ok"]
                ends["one row of several" if len(failed) == 1 else "unexpected"] += 1
            for good in GOOD:
                await client.call("infer", good)

    await asyncio.gather(
        *(ask(range(first + lane, first + count, CONCURRENCY)) for lane in range(CONCURRENCY))
    )
    return ends


def shapes(mesh: Mesh) -> dict[str, Shape]:
    """Of each service's active process."""
    children = {row["service"]: row for row in run.status(mesh.home)["children"]}
    return {service: shape(children[service]["pid"]) for service in SERVICES}


async def measure(mesh: Mesh, requests: int) -> tuple[list[dict[str, Shape]], Counter[str]]:
    """The shapes after the warm-up and each tenth of the requests, and how these ended."""
    client = RpcClient(mesh.socket(), "orchestrator")
    await client.connect(5.0)
    step = max(CONCURRENCY, requests // LOOKS)
    await fail(client, 2 * step, 0)
    found, ends = [await asyncio.to_thread(shapes, mesh)], Counter[str]()
    for first in range(0, step * LOOKS, step):
        ends += await fail(client, step, first)
        found.append(await asyncio.to_thread(shapes, mesh))
    await client.close()
    return found, ends


def growth(found: list[dict[str, Shape]]) -> list[str]:
    """What grew: between the first looks and the last ones, so that one burst does not count."""
    grown = []
    for service in SERVICES:
        rows = [look[service] for look in found]
        before = max(row.private_kib for row in rows[:3])
        after = min(row.private_kib for row in rows[-3:])
        if after > before + slack_kib:
            grown.append(f"{service}: private memory {before} → {after} KiB")
        if rows[-1].descriptors > rows[0].descriptors + slack_descriptors:
            descriptors = f"{rows[0].descriptors} → {rows[-1].descriptors}"
            grown.append(f"{service}: descriptors {descriptors}")
        if rows[-1].threads > rows[0].threads:
            grown.append(f"{service}: threads {rows[0].threads} → {rows[-1].threads}")
    return grown


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failing")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--note", default="", help="kept with the figures")
    parser.add_argument("--out", type=Path, default=None, help="write the result here too")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="mob", dir="/tmp") as folder,
        mesh_with(Path(folder), [picky()]) as mesh,
    ):
        found, ends = asyncio.run(measure(mesh, options.requests))
    grown = growth(found)
    row = {
        "what": "requests that fail, and what the processes hold after each tenth of them",
        "command": f"python -m benchmarks.failing --requests {options.requests}",
        "requests": sum(ends.values()),
        "ends": dict(sorted(ends.items())),
        "shapes": [{name: asdict(one) for name, one in look.items()} for look in found],
        "grown": grown,
        "machine": describe_machine(),
        "note": options.note,
    }
    text = json.dumps(row, indent=1, ensure_ascii=False)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    return 1 if grown or set(ends) != EXPECTED else 0


if __name__ == "__main__":
    sys.exit(main())
