"""Models that fail honestly, for what is measured and tested about failures, and a bench home with
them.

Nothing pretends here: `picky` looks up categories that a caller may get wrong, `slow` takes a time
that grows with its rows, `tiny` answers NaN to NaN.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from contracts.pack import Architecture, ModelContract, TensorContract
from contracts.policies import BatchingSpec
from mortise.throwaway import Mesh
from services.jobs.bench_packs import sleepy
from services.jobs.pack_writer import Draft, write_pack

EXAMPLE = Path(__file__).parents[1] / "examples" / "bench"
CATEGORIES = 8
SLOW_ROW_MS = 60.0
SLOW_P99_MS = 20


def picky() -> Draft:
    """`numbers` FP32 [n, 2] and `category` INT64 [n, 1] → `y` FP32 [n, 2], the two numbers plus
    the category in each; a category outside 0 … 7 makes its forward raise."""
    table = np.repeat(np.arange(CATEGORIES, dtype=np.float32)[:, None], 2, axis=1)
    return Draft(
        contract=ModelContract(
            name="picky",
            task="tensor",
            inputs=[
                TensorContract(name="numbers", datatype="FP32", shape=[-1, 2]),
                TensorContract(name="category", datatype="INT64", shape=[-1, 1]),
            ],
            outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, 2])],
        ),
        architecture=Architecture(
            name="tabular",
            configuration={
                "numbers": 2,
                "cardinalities": [CATEGORIES],
                "widths": [2, 2],
                "clip": 1e6,
            },
        ),
        provenance=sleepy().provenance,
        tensors={
            "numbers.weight": np.eye(2, dtype=np.float32),
            "numbers.bias": np.zeros(2, np.float32),
            "categories.weight": table,
            "layers.0.weight": np.eye(2, dtype=np.float32),
            "layers.0.bias": np.zeros(2, np.float32),
        },
    )


def slow(name: str = "slow") -> Draft:
    """`sleepy` with 60 ms a row and a promise of 20 ms: its forward may take a second, which 17
    rows reach."""
    draft = sleepy()
    configuration = {**draft.architecture.configuration, "batch_ms": 1.0, "row_ms": SLOW_ROW_MS}
    return replace(
        draft,
        contract=msgspec.structs.replace(draft.contract, name=name, p99_ms=SLOW_P99_MS),
        architecture=Architecture(name="sleepy", configuration=configuration),
    )


def policy_text(name: str, version: str, digest: str, rows_max: int) -> str:
    """Published, deployed and routed, as `policies.toml` has it."""
    return f"""
[[policy]]
kind = "model"
name = "{name}"
spec = {{ versions = [{{ version = "{version}", digest = "{digest}" }}] }}

[[policy]]
kind = "deployment"
name = "{name}"
spec = {{ versions = [{{ version = "{version}" }}] }}

[[policy]]
kind = "route"
name = "{name}"
spec = {{ default = "{version}" }}

[[policy]]
kind = "batching"
name = "{name}"
spec = {{ rows_max = {rows_max} }}
"""


@contextmanager
def mesh_with(
    folder: Path,
    drafts: Sequence[Draft],
    rows_max: int = BatchingSpec().rows_max,
    runtime: str = "",
) -> Iterator[Mesh]:
    """A running mesh of a bench home below `folder` that also serves these models as version 1;
    `runtime` are lines of its `[runtime]`."""
    home = folder / "home"
    shutil.copytree(EXAMPLE, home, ignore=shutil.ignore_patterns(".mortise"))
    with (home / "policies.toml").open("a") as policies:
        for draft in drafts:
            digest = write_pack(draft, home / "models")
            policies.write(policy_text(draft.contract.name, "1", digest, rows_max))
    with (home / "mortise.toml").open("a") as file:
        file.write(runtime)
    with Mesh(home) as mesh:
        yield mesh
