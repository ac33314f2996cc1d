"""Packs of exported programs for tests, and what else stands for a backend: modules as a user would
write them, and a third-party package in a folder."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from contracts.pack import Architecture, Manifest, ModelContract, TensorContract
from services.jobs.backend_checks import Subject
from services.jobs.bench_packs import sleepy, tiny
from services.jobs.export_program import export
from services.jobs.pack import program_draft
from services.jobs.pack_writer import Draft, write_folder
from services.model_runtime.backends.registry import find_backend
from services.model_runtime.backends.torch_module import pin_numerics
from services.model_runtime.mapping import map_tensors, read_files
from shared.packs import identify, verify

TOY = '''"""A backend that needs nothing of Mortise: y = x times the pack's `factor`."""

import numpy as np


class Toy:
    """One loaded model."""

    waits = False

    def __init__(self, factor):
        self.factor = factor

    @classmethod
    def load(cls, manifest, tensors, files):
        if set(tensors) != {"factor"}:
            raise ValueError(f"tensor 'factor' is expected, the pack has {sorted(tensors)}")
        return cls(tensors["factor"])

    def warm(self):
        self.forward([np.zeros((1, len(self.factor)), np.float32)], 1)

    def forward(self, inputs, rows):
        return [inputs[0] * self.factor]

    def lane(self, rows):
        return None

    def cost(self, rows):
        return rows * 1e-6

    def close(self):
        self.factor = None
'''


class TinyModule(torch.nn.Module):
    """`tiny` as its author would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 32), torch.nn.Linear(32, 2)
        arrays = tiny().tensors
        with torch.no_grad():
            for index, layer in enumerate((self.first, self.last)):
                layer.weight.copy_(torch.from_numpy(arrays[f"layers.{index}.weight"]))
                layer.bias.copy_(torch.from_numpy(arrays[f"layers.{index}.bias"]))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 64] → [n, 2]."""
        y: Tensor = self.last(torch.relu(self.first(x)))
        return y


class HalfModule(torch.nn.Module):
    """`tiny` with weights of half the precision, FP32 outside."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.dtype = TinyModule().to(dtype), dtype

    def forward(self, x: Tensor) -> Tensor:
        """[n, 64] → [n, 2]."""
        y: Tensor = self.inner(x.to(self.dtype))
        return y.float()


def exported_tiny(module: torch.nn.Module | None = None) -> Draft:
    """`tiny` as an exported program with the same contract."""
    exported = export(module or TinyModule(), [torch.zeros(3, 64)], tiny().contract.rows_max)
    return program_draft(tiny().contract, exported, tiny().provenance, "TinyModule")


def toy() -> Draft:
    """A pack of the third-party backend `toy`."""
    shape = [TensorContract(name="x", datatype="FP32", shape=[-1, 4])]
    return Draft(
        contract=ModelContract(
            name="toy",
            task="tensor",
            inputs=shape,
            outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, 4])],
        ),
        architecture=Architecture(name="toy"),
        provenance=sleepy().provenance,
        tensors={"factor": np.arange(4, dtype=np.float32)},
        backend="toy",
    )


def write_toy_package(folder: Path, source: str = TOY, value: str = "toy_backend:Toy") -> None:
    """The package as an installer leaves it: a module and its metadata."""
    (folder / "toy_backend.py").write_text(source)
    metadata = folder / "toy_backend-1.0.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[mortise.backends]\ntoy = {value}\n")


def subject(draft: Draft, folder: Path, backends: tuple[str, ...] = ()) -> Subject:
    """The pack written, mapped and ready to be loaded."""
    folder.mkdir(exist_ok=True)
    write_folder(draft, folder)
    manifest: Manifest = verify(folder)
    identities = identify(folder, manifest)
    return Subject(
        manifest=manifest,
        kind=find_backend(manifest, backends),
        tensors=map_tensors(folder, manifest, identities),
        files=read_files(folder, manifest, identities),
    )


def with_program(whole: Subject, content: bytes) -> Subject:
    """The same with another graph."""
    return replace(whole, files={"program.json": content})


@contextmanager
def pinned() -> Iterator[None]:
    """One thread, deterministic; put back afterwards."""
    threads = torch.get_num_threads()
    pin_numerics(1)
    yield
    torch.set_deterministic_debug_mode("default")
    torch.set_num_threads(threads)


def forget_toy() -> None:
    """So that the next import finds what lies there then."""
    sys.modules.pop("toy_backend", None)
