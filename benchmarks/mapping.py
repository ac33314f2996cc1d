"""P3: what a second replica costs when weights are mapped, beside unpickling the same weights.

    python -m benchmarks.mapping [--mib 512] [--result FILE]

A pack of linear layers is written once. Then, alternating between the two ways, two fresh
processes that have imported torch load it as the runtime does (verified already) or unpickle the
same tensors, answer one row, and say how long both took; the forward that answers reads all
weights and is the same work either way. The memory of a second replica is what the sum of both
processes' PSS grew by. Limits: ready ≥ 17 × faster, ≤ 38 % of the memory.
"""

import argparse
import json
import multiprocessing
import os
import pickle
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from contracts.pack import Architecture, ModelContract, Provenance, TensorContract
from services.jobs.machine import describe_machine
from services.jobs.pack_writer import Draft, write_pack
from services.model_runtime.backends.architectures import build
from services.model_runtime.backends.torch_module import TorchModule, pin_numerics
from services.model_runtime.mapping import map_tensors
from shared.pack_cache import VerifiedCache, settled_s
from shared.pack_digests import sha256
from shared.packs import pack_path

WIDTH = 1_024
RUNS = 3
SPEED_MIN, MEMORY_MAX = 17.0, 0.38


def draft(mib: int) -> Draft:
    """Square layers of 4 MiB each."""
    layers = mib // 4
    random = np.random.default_rng(1)
    tensors = {}
    for layer in range(layers):
        weight = random.standard_normal((WIDTH, WIDTH), dtype=np.float32)
        tensors[f"layers.{layer}.weight"] = weight / np.sqrt(np.float32(WIDTH / 2))
        tensors[f"layers.{layer}.bias"] = np.zeros(WIDTH, dtype=np.float32)
    return Draft(
        contract=ModelContract(
            name="large",
            task="tensor",
            inputs=[TensorContract(name="x", datatype="FP32", shape=[-1, WIDTH])],
            outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, WIDTH])],
        ),
        architecture=Architecture(name="mlp", configuration={"widths": [WIDTH] * (layers + 1)}),
        provenance=Provenance(code=sha256(Path(__file__).read_bytes()), seed=1),
        tensors=tensors,
    )


def load_mapped(folder: Path, digest: str) -> Any:
    """As the runtime loads a pack that was verified before."""
    manifest, identities = VerifiedCache(folder / "models", folder / "verified").verify(digest)
    tensors = map_tensors(pack_path(folder / "models", digest), manifest, identities)
    model = TorchModule.load(manifest, tensors, {})
    return lambda x: model.forward([x], 1)


def load_pickled(folder: Path, digest: str) -> Any:
    """The usual way: every process reads and owns its copy."""
    tensors = pickle.loads((folder / "weights.pickle").read_bytes())
    manifest = msgspec.json.decode((folder / "architecture.json").read_bytes(), type=Architecture)
    network = build(manifest, tensors)
    return lambda x: network(torch.from_numpy(x))


def replica(way: str, folder: Path, digest: str, pipe: Connection) -> None:
    """One process: load and answer, then tell its memory each time it is asked."""
    pin_numerics(1)
    x = np.ones((1, WIDTH), dtype=np.float32)
    pss_before = pss_bytes()
    pipe.recv()
    started_s = time.perf_counter()
    model = {"mapped": load_mapped, "pickled": load_pickled}[way](folder, digest)
    loaded_s = time.perf_counter() - started_s
    with torch.inference_mode():
        model(x)
    pipe.send((loaded_s, time.perf_counter() - started_s))
    while pipe.recv() == "measure":
        pipe.send(pss_bytes() - pss_before)


def pss_bytes() -> int:
    """Proportional set size of this process (proc(5))."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("Linux has stated Pss since 4.14")


class Replica:
    """A spawned process and its pipe."""

    def __init__(self, way: str, folder: Path, digest: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, far = spawn.Pipe()
        self.process = spawn.Process(target=replica, args=(way, folder, digest, far))
        self.process.start()
        self.pipe.send("load")
        self.loaded_s: float
        self.answered_s: float
        self.loaded_s, self.answered_s = self.pipe.recv()

    def pss(self) -> int:
        """What its load added, shared pages by their share."""
        self.pipe.send("measure")
        size: int = self.pipe.recv()
        return size

    def stop(self) -> None:
        """End it."""
        self.pipe.send("stop")
        self.process.join()


def measure(way: str, folder: Path, digest: str) -> tuple[float, float, float]:
    """A second replica: seconds until loaded, seconds until it answered, MiB that it added."""
    first = Replica(way, folder, digest)
    alone = first.pss()
    second = Replica(way, folder, digest)
    added = first.pss() + second.pss() - alone
    second.stop()
    first.stop()
    return second.loaded_s, second.answered_s, added / 2**20


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--result", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mo") as name:
        folder = Path(name)
        large = draft(options.mib)
        digest = write_pack(large, folder / "models")
        tensors = {name: torch.from_numpy(array) for name, array in large.tensors.items()}
        (folder / "weights.pickle").write_bytes(pickle.dumps(tensors, protocol=5))
        (folder / "architecture.json").write_bytes(msgspec.json.encode(large.architecture))
        del large, tensors
        time.sleep(2 * settled_s)  # a pack written this instant is not recorded as verified
        started_s = time.perf_counter()
        VerifiedCache(folder / "models", folder / "verified").verify(digest)
        verify_s = time.perf_counter() - started_s
        runs: dict[str, list[tuple[float, float, float]]] = {"mapped": [], "pickled": []}
        for _ in range(RUNS):
            for way, measured in runs.items():
                measured.append(measure(way, folder, digest))
    loaded_s, answered_s, added_mib = (
        {way: statistics.median(run[place] for run in measured) for way, measured in runs.items()}
        for place in range(3)
    )
    result = {
        "what": "a second replica, mapped or unpickled: load, first answer, memory added",
        "command": f"python -m benchmarks.mapping --mib {options.mib}",
        "machine": describe_machine() | {"load_average": round(os.getloadavg()[0], 1)},
        "weights_mib": options.mib,
        "runs": RUNS,
        "first_verification_s": round(verify_s, 3),
        "loaded_s": {way: round(seconds, 4) for way, seconds in loaded_s.items()},
        "answered_s": {way: round(seconds, 4) for way, seconds in answered_s.items()},
        "memory_added_mib": {way: round(size, 1) for way, size in added_mib.items()},
        "loaded_ratio": round(loaded_s["pickled"] / loaded_s["mapped"], 1),
        "answered_ratio": round(answered_s["pickled"] / answered_s["mapped"], 1),
        "memory_share": round(added_mib["mapped"] / added_mib["pickled"], 3),
        "limits": {"ready_ratio_min": SPEED_MIN, "memory_share_max": MEMORY_MAX},
    }
    encoded = json.dumps(result, indent=1)
    print(encoded)
    if options.result:
        options.result.write_text(encoded + "\n")


if __name__ == "__main__":
    main()
