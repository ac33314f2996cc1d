"""Mutated `program.json` files against the loader of programs.

    python -m tests.fuzz.programs --count 20000 --seed 20130101

Each must be refused as PACK_INVALID, or load and answer with the contract's shapes or an ordinary
error. Nothing else may be raised, no file may take longer than `load_s_max`, no weight may change.
The process bounds its own memory, so that a graph that asks for too much meets a failed allocation.
"""

import argparse
import copy
import json
import random
import resource
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contracts.errors import MeshError
from contracts.pack import ModelContract, TensorContract
from contracts.program import PROGRAM
from services.jobs.backend_checks import Subject
from services.jobs.bench_packs import tiny
from services.jobs.export_program import export
from services.jobs.pack import program_draft
from services.model_runtime.backends.operators import ARITHMETIC, ATEN, MEASURES, PINNED
from tests.unit.services.model_runtime.backends.exported import pinned, subject

memory_bytes_max = 6 * 2**30
"""Of address space: torch itself maps about two."""
load_s_max = 30.0


def _takes(name: str, count: int) -> bool:
    """Whether an operator's schema takes so many positional arguments."""
    _, packet, overload = name.split(".")
    schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
    places = [one for one in schema.arguments if not one.kwarg_only]
    return sum(not one.has_default_value() for one in places) <= count <= len(places)


OPERATORS = sorted(ATEN | ARITHMETIC.keys() | MEASURES.keys())
NUMBERS = (0, 1, -1, 2, 3, 4, 5, 8, 16, 17, 64, 1000, 2**20, 2**31, 2**62, -(2**62), 0.5, 1e30)
BY_ARITY = {count: [name for name in sorted(ATEN) if _takes(name, count)] for count in range(12)}
"""Operators that take so many positional arguments."""
WORDS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 63, 64, 2**31 - 1, 2**63 - 1, -(2**63), 1e308, 0.5,
    "", "x", "mean", "aten.relu.default", "aten.empty.memory_format", "prim.device.default",
    "os.system", "__class__", "size.of", "aten", "aten.relu", "aten.relu_.default",
    [], [0], [-1, 4], [2**31 - 1, 2**31 - 1], {}, {"kind": "value", "name": "x"},
    {"kind": "value", "name": "nowhere"}, {"kind": "number", "name": "nan"},
    {"kind": "datatype", "name": "BF16"}, {"kind": "datatype", "name": "COMPLEX"},
    {"kind": "memory_format", "name": "channels_last"}, {"kind": "code", "name": "x"},
)  # fmt: skip


class Rich(torch.nn.Module):
    """Attention, convolution, size arithmetic, several values from one call."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.convolution = torch.nn.Conv1d(16, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 64] → [n, 2]."""
        rows = x.shape[0]
        hidden = self.attention(x.reshape(rows, 4, 16))
        hidden = self.norm(self.convolution(hidden.transpose(1, 2)))
        first, second = hidden.transpose(1, 2).chunk(2, 2)
        joined = torch.cat([first.mean(1), second.amax(1)], 1).view(rows * 2, 4).view(rows, 8)
        y: Tensor = self.last(joined.masked_fill(joined > 1e6, float("-inf")))
        return y


def rich(folder: Path) -> Subject:
    """The pack that is mutated."""
    torch.manual_seed(1)
    contract = ModelContract(
        name="rich",
        task="tensor",
        inputs=[TensorContract(name="x", datatype="FP32", shape=[-1, 64])],
        outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, 2])],
        rows_max=64,
    )
    exported = export(Rich(), [torch.zeros(3, 64)], contract.rows_max)
    return subject(program_draft(contract, exported, tiny().provenance), folder)


def mutate(program: dict[str, Any], content: bytes, chance: random.Random) -> bytes:
    """Another file: bytes changed, cut, or the graph changed in one to three places."""
    kind = chance.randrange(10)
    if kind == 0:
        return content[: chance.randrange(len(content))]
    if kind == 1:
        changed = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        return bytes(changed)
    other = copy.deepcopy(program)
    if kind < 7:
        _change_gently(other, chance)
        return json.dumps(other).encode()
    for _ in range(chance.randint(1, 3)):
        _change(other, chance)
    return json.dumps(other).encode()


def _change(program: dict[str, Any], chance: random.Random) -> None:
    nodes = program.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        return  # an earlier change left nothing to work on
    node = chance.choice(nodes) if nodes else {}
    match chance.randrange(8):
        case 0 if node:
            node["operator"] = chance.choice(OPERATORS)
        case 1 if node:
            node["operator"] = chance.choice(sorted(PINNED))
        case 2 if node and isinstance(node.get("arguments"), list) and node["arguments"]:
            place = chance.randrange(len(node["arguments"]))
            node["arguments"][place] = chance.choice(WORDS)
        case 3 if node and isinstance(node.get("arguments"), list):
            node["arguments"].insert(
                chance.randint(0, len(node["arguments"])), chance.choice(WORDS)
            )
        case 4 if nodes:
            nodes.insert(chance.randrange(len(nodes)), copy.deepcopy(chance.choice(nodes)))
        case 5 if len(nodes) > 1:
            nodes.pop(chance.randrange(len(nodes)))
        case 6 if node and isinstance(node.get("keywords"), dict):
            word = chance.choice(["dtype", "train", "device", "out", "memory_format", "dim", "p"])
            node["keywords"][word] = chance.choice(WORDS)
        case _:
            _replace_anywhere(program, chance)


def _change_gently(program: dict[str, Any], chance: random.Random) -> None:
    """What gets past the rules and meets torch itself: another number, another earlier value, an
    operator that takes the same arguments."""
    place = chance.randrange(len(program["nodes"]))
    node = program["nodes"][place]
    values = [value["name"] for value in (*program["inputs"], *program["weights"])]
    for earlier in program["nodes"][:place]:
        outputs = [earlier["output"]] if isinstance(earlier["output"], str) else earlier["output"]
        values += filter(None, outputs)
    holders = [node["arguments"], *(one for one in node["arguments"] if isinstance(one, list))]
    holder = chance.choice([one for one in holders if one])
    index = chance.randrange(len(holder))
    if isinstance(holder[index], dict) and holder[index].get("kind") == "value":
        holder[index] = {"kind": "value", "name": chance.choice(values)}
    elif isinstance(holder[index], int | float):
        holder[index] = chance.choice(NUMBERS)
    arity = len(node["arguments"])
    if chance.random() < 0.5:
        node["operator"] = chance.choice(BY_ARITY[arity])


def _replace_anywhere(program: Any, chance: random.Random) -> None:
    """Walk to some leaf and put another word there, or take it away."""
    holder = program
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            return
        key = chance.choice(keys)
        if isinstance(holder[key], dict | list) and holder[key] and chance.random() < 0.9:
            holder = holder[key]
        elif chance.random() < 0.2:
            del holder[key]
            return
        else:
            holder[key] = copy.deepcopy(chance.choice(WORDS))
            return


def try_one(whole: Subject, content: bytes) -> str:
    """What became of a file: "refused", "loaded" or "failed" (loads; its forward raises)."""
    try:
        backend = replace(whole, files={PROGRAM: content}).load()
    except MeshError as error:
        if error.name != "PACK_INVALID":
            raise
        return "refused"
    (x,) = whole.inputs(5)
    try:
        (y,) = backend.forward([x], 5)
    except (RuntimeError, ValueError, IndexError, TypeError, MeshError):
        return "failed"
    assert y.shape == (5, 2)
    return "loaded"


def run(count: int, seed: int) -> dict[str, Any]:
    """So many files; raises with the file that broke a rule."""
    chance = random.Random(seed)
    found: Counter[str] = Counter()
    slowest_s = 0.0
    with pinned(), tempfile.TemporaryDirectory(prefix="mo", dir="/tmp") as folder:
        whole = rich(Path(folder) / "pack")
        content = whole.files[PROGRAM]
        before = {name: array.tobytes() for name, array in whole.tensors.items()}
        program = json.loads(content)
        assert try_one(whole, content) == "loaded"
        for number in range(count):
            changed = mutate(program, content, chance)
            started_s = time.monotonic()
            try:
                found[try_one(whole, changed)] += 1
            except BaseException:
                print(f"file {number} of seed {seed}: {changed.decode(errors='replace')}")
                raise
            slowest_s = max(slowest_s, time.monotonic() - started_s)
        assert slowest_s < load_s_max
        assert {name: array.tobytes() for name, array in whole.tensors.items()} == before
    return {"files": count, "seed": seed, **found, "slowest_s": round(slowest_s, 2)}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=20130101)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes_max, memory_bytes_max))
    print(json.dumps(run(options.count, options.seed)))


if __name__ == "__main__":
    main()
