"""Makes the packs of the bench home: `tiny`, a small seeded network, and `sleepy`, which waits.

    python -m services.jobs.bench_packs --home examples/bench

Depends on numpy's seeded generator alone, so that every machine gets the same digests.
"""

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np

from contracts.pack import Architecture, ModelContract, Provenance, TensorContract
from services.jobs.pack_writer import Draft, write_pack
from services.jobs.progress import report, run
from shared.pack_digests import sha256

SEED = 20130101
WIDTHS = (64, 32, 2)


def tiny() -> Draft:
    """`x` FP32 [n, 64] → `y` FP32 [n, 2]: two layers with a ReLU between them."""
    random = np.random.default_rng(SEED)
    tensors = {}
    for layer, (inputs, outputs) in enumerate(pairwise(WIDTHS)):
        # Kaiming: deviation sqrt(2 / inputs) keeps the activations' scale through ReLU layers.
        weight = random.standard_normal((outputs, inputs)) * np.sqrt(2 / inputs)
        tensors[f"layers.{layer}.weight"] = weight.astype(np.float32)
        tensors[f"layers.{layer}.bias"] = random.standard_normal(outputs).astype(np.float32)
    return Draft(
        contract=ModelContract(
            name="tiny",
            task="tensor",
            inputs=[TensorContract(name="x", datatype="FP32", shape=[-1, WIDTHS[0]])],
            outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, WIDTHS[-1]])],
            description="A small seeded network: what the mesh costs when the model costs little.",
        ),
        architecture=Architecture(name="mlp", configuration={"widths": list(WIDTHS)}),
        provenance=_provenance(),
        tensors=tensors,
    )


def sleepy() -> Draft:
    """`x` FP32 [n, 1] → `y` FP32 [n, 1], doubled after 5 ms + 0.2 ms per row."""
    return Draft(
        contract=ModelContract(
            name="sleepy",
            task="tensor",
            inputs=[TensorContract(name="x", datatype="FP32", shape=[-1, 1])],
            outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, 1])],
            description="Waits 5 ms + 0.2 ms per row, then doubles: a model of known cost.",
        ),
        architecture=Architecture(
            name="sleepy", configuration={"batch_ms": 5.0, "row_ms": 0.2, "factor": 2.0}
        ),
        provenance=_provenance(),
    )


def _provenance() -> Provenance:
    return Provenance(code=sha256(Path(__file__).read_bytes()), seed=SEED)


def main() -> None:
    """Write both packs into the home's `models/`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    home = parser.parse_args().home
    for draft in (tiny(), sleepy()):
        digest = write_pack(draft, home / "models")
        report("pack", model=draft.contract.name, digest=digest)


if __name__ == "__main__":
    run(main)
