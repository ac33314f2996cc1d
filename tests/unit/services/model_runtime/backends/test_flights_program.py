"""The flights champion as an exported program: a model with a view, encoders and categories gives
the numbers that its own architecture gives."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from contracts.pack import Manifest
from services.jobs.backend_checks import distance
from services.jobs.export_program import export
from services.jobs.pack import program_draft
from services.model_runtime.backends.architectures import Tabular
from services.model_runtime.backends.torch_memory import as_tensor
from services.model_runtime.backends.torch_module import TorchModule
from services.model_runtime.encoding import input_shapes
from services.model_runtime.mapping import Array, map_tensors
from shared.packs import identify, read_folder, read_view, verify
from tests.unit.services.model_runtime.backends.exported import pinned, subject

MODELS = Path(__file__).parents[5] / "examples" / "flights" / "models"


class Delay(torch.nn.Module):
    """`Tabular` over the committed weights."""

    def __init__(self, manifest: Manifest, tensors: dict[str, Array]) -> None:
        super().__init__()
        held = {name: as_tensor(array, is_bfloat16=False) for name, array in tensors.items()}
        self.network = Tabular(manifest.architecture.configuration, held)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """[n, D] and [n, K] → [n, labels]."""
        return self.network.logits(numbers, categories, dropout=0.0)


@pytest.fixture(autouse=True)
def numerics() -> Iterator[None]:
    """As in the runtime."""
    with pinned():
        yield


@pytest.mark.slow
def test_the_flights_model_equals_its_program(tmp_path: Path) -> None:
    """One row, a batch, more than a buffer; the pack keeps its view and its encoders. Bit for bit
    from equally aligned memory; as mapped, where the files differ in layout, within 1e-6 (one
    module does the same when only the place of its weights changes)."""
    folder = next(one for one in MODELS.iterdir() if read_folder(one).contract.name == "delay")
    manifest = verify(folder)
    tensors = map_tensors(folder, manifest, identify(folder, manifest))
    numbers, categories = input_shapes(manifest)
    example = [
        torch.zeros(3, numbers.shape[1]),
        torch.zeros(3, categories.shape[1], dtype=torch.int64),
    ]
    exported = export(Delay(manifest, tensors), example, manifest.contract.rows_max)
    draft = program_draft(manifest.contract, exported, manifest.provenance, "Tabular")
    view_sql = read_view(MODELS, f"sha256:{folder.name}")
    draft = replace(draft, encoders=tuple(manifest.encoders), view_sql=view_sql)
    whole = subject(draft, tmp_path / "pack")
    module, program = TorchModule.load(manifest, tensors, {}), whole.load()
    aligned = {name: array.copy() for name, array in tensors.items()}
    alike = {name: array.copy() for name, array in whole.tensors.items()}
    aligned_module = TorchModule.load(manifest, aligned, {})
    aligned_program = replace(whole, tensors=alike).load()
    for rows in (1, 7, 32, 1_025):
        inputs = whole.inputs(rows)
        outputs = [
            backend.forward(inputs, rows)[0].copy()
            for backend in (module, program, aligned_module, aligned_program)
        ]
        assert np.isfinite(outputs[0]).all()
        assert distance(outputs[0], outputs[1]) <= 1e-6
        assert outputs[2].tobytes() == outputs[3].tobytes()
