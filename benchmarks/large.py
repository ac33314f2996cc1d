"""A model of any size, generated and never committed, and a home that serves it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from contracts.pack import Architecture, ModelContract, Provenance, TensorContract
from services.jobs.pack_writer import Draft, write_pack
from shared.pack_digests import sha256

NAME = "large"
WIDTH = 1_024
LAYER_MIB = 4


def large(mib: int, name: str = NAME) -> Draft:
    """`x` FP32 [n, 1024] → `y` FP32 [n, 1024] through square layers of 4 MiB each."""
    layers = mib // LAYER_MIB
    # One matrix, its rows shifted from layer to layer: random numbers for all would take minutes.
    weight = np.random.default_rng(1).standard_normal((WIDTH, WIDTH), dtype=np.float32)
    weight /= np.sqrt(np.float32(WIDTH / 2))
    tensors = {}
    for layer in range(layers):
        tensors[f"layers.{layer}.weight"] = np.roll(weight, layer, axis=0)
        tensors[f"layers.{layer}.bias"] = np.zeros(WIDTH, dtype=np.float32)
    return Draft(
        contract=ModelContract(
            name=name,
            task="tensor",
            inputs=[TensorContract(name="x", datatype="FP32", shape=[-1, WIDTH])],
            outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, WIDTH])],
        ),
        architecture=Architecture(name="mlp", configuration={"widths": [WIDTH] * (layers + 1)}),
        provenance=Provenance(code=sha256(Path(__file__).read_bytes()), seed=1),
        tensors=tensors,
    )


def make_home(
    home: Path,
    drafts: Sequence[Draft],
    *,
    replicas: int = 1,
    replicas_max: int = 1,
    standby: bool = True,
    memory_mib_max: int = 8_192,
) -> Path:
    """A home that deploys each model as version 1 on up to `replicas_max` runtimes."""
    home.mkdir(parents=True)
    (home / "mortise.toml").write_text(
        "home_version = 1\n\n[runtime]\n"
        f"replicas = {replicas}\nreplicas_max = {replicas_max}\n"
        f"standby = {str(standby).lower()}\nmemory_mib_max = {memory_mib_max}\n"
    )
    texts = []
    for draft in drafts:
        digest = write_pack(draft, home / "models")
        texts.append(_policies(draft.contract.name, digest, replicas_max))
    (home / "policies.toml").write_text("\n".join(texts))
    return home


def _policies(name: str, digest: str, replicas: int) -> str:
    return f"""
[[policy]]
kind = "model"
name = "{name}"
spec = {{ versions = [{{ version = "1", digest = "{digest}" }}] }}

[[policy]]
kind = "deployment"
name = "{name}"
spec = {{ versions = [{{ version = "1", replicas = {replicas} }}] }}

[[policy]]
kind = "route"
name = "{name}"
spec = {{ default = "1" }}
"""
