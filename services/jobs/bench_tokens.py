"""Makes the token model of the bench home: `wordy`, a small seeded encoder whose rows may have any
length.

    python -m services.jobs.bench_tokens --home examples/bench

Depends on numpy's seeded generator alone, as `bench_packs` does, beside which it stands because a
pack's provenance is the source that made it.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from contracts.pack import (
    TOKEN_INPUTS,
    Architecture,
    ModelContract,
    Provenance,
    TensorContract,
    TokenContract,
)
from services.jobs.pack_writer import Draft, write_pack
from services.jobs.progress import report, run
from shared.pack_digests import sha256

SEED = 20130102
VOCABULARY, WIDTH, HEADS, HIDDEN, OUTPUTS = 512, 32, 2, 64, 2
ROW_TOKENS_MAX = 4_096
"""Attention is quadratic: a row of so many ids computes for about a quarter of a second."""


def wordy() -> Draft:
    """`input_ids` INT64 [n, l], `attention_mask` INT64 [n, l] → `y` FP32 [n, 2]."""
    random = np.random.default_rng(SEED)

    def weights(rows: int, columns: int) -> np.ndarray[Any, Any]:
        # Deviation 1 / sqrt(inputs) keeps the scale of what passes through.
        scaled = random.standard_normal((rows, columns)) / np.sqrt(columns)
        return np.asarray(scaled, dtype=np.float32)

    tensors = {"embedding.weight": weights(VOCABULARY, WIDTH)}
    for name, rows, columns in (
        ("layers.0.attention", 3 * WIDTH, WIDTH),
        ("layers.0.mix", WIDTH, WIDTH),
        ("layers.0.hidden", HIDDEN, WIDTH),
        ("layers.0.back", WIDTH, HIDDEN),
        ("head", OUTPUTS, WIDTH),
    ):
        tensors[f"{name}.weight"] = weights(rows, columns)
        tensors[f"{name}.bias"] = weights(1, rows)[0]
    return Draft(
        contract=ModelContract(
            name="wordy",
            task="tensor",
            inputs=[
                TensorContract(name=name, datatype="INT64", shape=[-1, -1]) for name in TOKEN_INPUTS
            ],
            outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, OUTPUTS])],
            tokens=TokenContract(vocabulary=VOCABULARY, row_tokens_max=ROW_TOKENS_MAX),
            description="A small seeded encoder over token ids: what unequal rows cost.",
        ),
        architecture=Architecture(
            name="encoder",
            configuration={
                "vocabulary": VOCABULARY,
                "width": WIDTH,
                "heads": HEADS,
                "layers": 1,
                "hidden": HIDDEN,
                "outputs": OUTPUTS,
            },
        ),
        provenance=Provenance(code=sha256(Path(__file__).read_bytes()), seed=SEED),
        tensors=tensors,
    )


def main() -> None:
    """Write the pack into the home's `models/`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    home = parser.parse_args().home
    draft = wordy()
    report("pack", model=draft.contract.name, digest=write_pack(draft, home / "models"))


if __name__ == "__main__":
    run(main)
