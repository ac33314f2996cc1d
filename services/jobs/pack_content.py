"""A pack's folder opened as the runtime opens it, and tried: each check of a backend's contract,
and for a program its largest batch without computing it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from contracts.errors import MeshError
from contracts.pack import Manifest
from contracts.program import PROGRAM_BACKEND
from contracts.types import UNSET
from services.jobs.backend_checks import Subject, run_checks
from services.model_runtime.backends.plan import Plan
from services.model_runtime.backends.program_rules import read_program
from services.model_runtime.backends.registry import find_backend
from services.model_runtime.backends.torch_memory import TORCH_TYPES
from services.model_runtime.backends.torch_module import pin_numerics
from services.model_runtime.encoding import input_shapes
from services.model_runtime.mapping import Array, map_tensors, read_files
from shared.home import Home, HomeError
from shared.packs import identify, verify

threads = 1


@dataclass(frozen=True, slots=True)
class Original:
    """What the pack was made from: `example` rows of each input, and the numbers it gives."""

    example: Sequence[Array]
    compute: Callable[[Sequence[Array]], Sequence[Array]]


def allowed_backends(home: Home) -> list[str]:
    """The home's `[runtime] backends`. Raises MeshError INVALID_REQUEST where it cannot be read."""
    try:
        return home.config().runtime.backends
    except HomeError as error:
        raise MeshError("INVALID_REQUEST", str(error)) from error


def try_pack(
    folder: Path,
    backends: Sequence[str],
    on_check: Callable[[str], None],
    original: Original | None = None,
) -> Manifest:
    """Verify the pack, load it and run every check on it; `backends` are those the home allows.

    Raises MeshError PACK_INVALID with the first that fails.
    """
    on_check("verify")
    manifest = verify(folder)
    identities = identify(folder, manifest)
    subject = Subject(
        manifest=manifest,
        kind=find_backend(manifest, backends),
        tensors=map_tensors(folder, manifest, identities),
        files=read_files(folder, manifest, identities),
        example=None if original is None else original.example,
        reference=None if original is None else original.compute,
    )
    pin_numerics(threads)
    if manifest.backend == PROGRAM_BACKEND:
        on_check("largest batch")
        try_largest(subject)
    run_checks(subject, on_check)
    return manifest


def try_largest(subject: Subject) -> None:
    """A program's `rows_max` rows through its graph, sizes only: what does not fit, or grows beyond
    `value_mib_max`, is known before anybody sends so many."""
    from torch._subclasses import FakeTensorMode  # 1,000 modules, which only this needs

    manifest = subject.manifest
    shapes = input_shapes(manifest)
    program = read_program(subject.files, manifest, shapes)
    tokens = manifest.contract.tokens
    with FakeTensorMode():
        weights = {
            tensor.name: torch.empty(tensor.shape, dtype=TORCH_TYPES[tensor.datatype])
            for tensor in manifest.tensors
        }
        width = 0 if tokens is UNSET else tokens.row_tokens_max
        rows = 1 if width else manifest.contract.rows_max
        inputs = [
            torch.zeros(
                [rows, *(width if size < 0 else size for size in one.shape[1:])],
                dtype=TORCH_TYPES[one.datatype],
            )
            for one in shapes
        ]
        outputs = Plan(program, weights).try_out(inputs)
    for output, contract in zip(outputs, manifest.contract.outputs, strict=True):
        if list(output.shape) != [rows, *contract.shape[1:]]:
            raise MeshError(
                "PACK_INVALID",
                f"output {contract.name} is {list(output.shape)} for {rows} rows, the contract says"
                f" {[rows, *contract.shape[1:]]}",
            )
