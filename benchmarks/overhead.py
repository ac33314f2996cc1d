"""What each stage of an `infer` costs, beside the least that it could cost.

    python -m benchmarks.overhead [--requests 3000] [--note TEXT] [--no-save]

One client asks `tiny` again and again through the SDK's socket; the stages are those that each
answer tells (`timing_us`), medians in microseconds. Beside them the floors, measured in this run:
a bare forward of the same network in a loop of its own, decoding the request's frame, and a round
trip to a server that does nothing. Writes `benchmarks/results/overhead.json`.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import torch

from benchmarks.generator import Template, row_of
from benchmarks.peers.truth import weights_path
from benchmarks.serving import EXAMPLE, ROOT, run_floor, supervisor
from contracts.inference import InferenceRequest
from contracts.stages import STAGES
from mortise import Client
from services.jobs.machine import describe_machine

RESULTS = ROOT / "benchmarks" / "results" / "overhead.json"
WARM_UP = 300
FLOOR_TURNS = 2_000
FLOOR_S = 2.0


def median_us(work: Callable[[], Any], turns: int = FLOOR_TURNS) -> float:
    """The median of `turns` calls in microseconds."""
    spent = []
    for _ in range(turns):
        began_s = time.perf_counter()
        work()
        spent.append((time.perf_counter() - began_s) * 1e6)
    return round(statistics.median(spent), 1)


def bare_forward_us() -> float:
    """`tiny` on one row, torch on one thread, nothing around it."""
    from safetensors.torch import load_file

    torch.set_num_threads(1)
    tensors = load_file(weights_path(EXAMPLE))
    first, second = torch.nn.Linear(64, 32), torch.nn.Linear(32, 2)
    with torch.inference_mode():
        for number, layer in enumerate((first, second)):
            layer.weight.copy_(tensors[f"layers.{number}.weight"])
            layer.bias.copy_(tensors[f"layers.{number}.bias"])
        network = torch.nn.Sequential(first, torch.nn.ReLU(), second)
        row = torch.frombuffer(bytearray(row_of(0)), dtype=torch.float32).reshape(1, -1)
        return median_us(lambda: network(row))


def decode_us() -> float:
    """Finding the end of the request's frame, and one typed decode of its body."""
    frame = Template(0).request(1)
    body = msgpack.packb(msgpack.unpackb(frame)[3][0])
    decoder = msgspec.msgpack.Decoder(InferenceRequest)

    def work() -> None:
        scanner = msgpack.Unpacker()
        scanner.feed(frame)
        scanner.skip()
        decoder.decode(body)

    return median_us(work)


def stages(home: Path, requests: int) -> dict[str, float]:
    """Medians of each stage as answers tell them, the whole, and what the client saw."""
    seen: dict[str, list[float]] = {name: [] for name in (*STAGES, "total", "client")}
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 64], "data": row_of(0)}]
    with Client(home=home) as client:
        for number in range(WARM_UP + requests):
            began_s = time.perf_counter()
            answer = client.infer("tiny", inputs=inputs)
            spent_us = (time.perf_counter() - began_s) * 1e6
            if number < WARM_UP:
                continue
            timing = answer.timing_us.to_builtin()
            for name in (*STAGES, "total"):
                seen[name].append(float(timing.get(name, 0)))
            seen["client"].append(spent_us)
    return {name: round(statistics.median(found), 1) for name, found in seen.items()}


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--note", default="")
    parser.add_argument("--no-save", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mob", dir="/tmp"))
    home = folder / "home"
    shutil.copytree(EXAMPLE, home)
    try:
        hop_us = round(run_floor(folder, FLOOR_S)["closed 1"]["p50_ms"] * 1e3, 1)
        supervisor(home, "start", "--detach")
        try:
            found = stages(home, given.requests)
        finally:
            supervisor(home, "stop")
    finally:
        shutil.rmtree(folder)
    floors = {
        "bare forward": bare_forward_us(),
        "scan and decode of the request": decode_us(),
        "one round trip over a socket": hop_us,
    }
    for title, row in (("stage, median µs", found), ("floor, median µs", floors)):
        print(title)
        for name, value in row.items():
            print(f"  {name:<32}{value:>9}")
    if not given.no_save:
        result = {
            "what": "median microseconds of each stage of an infer of `tiny`, one client",
            "command": f"python -m benchmarks.overhead --requests {given.requests}",
            "stages_us": found,
            "floors_us": floors,
            "machine": describe_machine(),
            "note": given.note,
        }
        RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
