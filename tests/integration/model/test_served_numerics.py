"""The numbers that the mesh serves are the ones that the pack and the view mean offline.

Offline: the data fabric's engine over the sources, then the network in double precision, written
out here from the pack's tensors; nothing of the runtime is used.
"""

import datetime
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import safetensors.numpy

from contracts.pack import Manifest
from mortise import Client, MortiseError
from mortise.throwaway import Mesh
from services.data_fabric.offline import features
from shared.home import Home
from shared.packs import pack_path, read_manifest, read_view

FLIGHTS = Path(__file__).parents[3] / "examples/flights"
ROWS = 400
READY_S_MAX = 120
DIFFERENCE_MAX = 1e-5  # M14, float32


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a mesh of the flights example whose view is loaded."""
    with Mesh(FLIGHTS) as mesh, mesh.client() as client:
        wait_until_ready(mesh)
        yield client


def wait_until_ready(mesh: Mesh) -> None:
    """The fabric computes its running totals before it answers; on a busy machine that outlasts
    the start."""
    ends_s = time.monotonic() + READY_S_MAX
    while True:
        try:
            with mesh.client("data_fabric") as fabric:
                if fabric.call("health").ready:
                    return
        except MortiseError:
            if time.monotonic() > ends_s:
                raise
        assert time.monotonic() < ends_s, f"not ready within {READY_S_MAX} s"
        time.sleep(0.2)


def december() -> pa.Table:
    """Departures of December, spread over the month, some without a known aircraft."""
    whole = pq.read_table(FLIGHTS / "data/flights-2013-12.parquet")
    random = np.random.default_rng(12)
    return whole.take(np.sort(random.choice(len(whole), ROWS, replace=False)))


def request_rows(table: pa.Table, columns: list[str]) -> list[dict[str, Any]]:
    """As a client sends them."""
    rows = table.select(columns).to_pylist()
    for row in rows:
        instant: datetime.datetime = row["scheduled_at"]
        row["scheduled_at"] = instant.isoformat()
    return rows


def offline_probabilities(manifest: Manifest, view_sql: str, table: pa.Table) -> Any:
    """Features by the engine, encoders and network in double precision: [n, labels]."""
    home = Home(FLIGHTS)
    patterns = {name: home.path / one.path for name, one in home.config().sources.items()}
    columns = features(view_sql, patterns, table)
    weights = {
        name: array.astype(np.float64)
        for name, array in safetensors.numpy.load_file(
            pack_path(home.models_dir, digest_of(manifest.contract.name)) / "weights.safetensors"
        ).items()
    }
    numbers, flags, hidden, offset = [], [], 0.0, 0
    for encoder in manifest.encoders:
        column = columns[encoder.field]
        if encoder.kind == "standard":
            is_null = pc.is_null(column).to_numpy()
            values = column.cast(pa.float64()).fill_null(encoder.mean).to_numpy()
            numbers.append((values - encoder.mean) / encoder.deviation)
            flags += [is_null.astype(np.float64)] if encoder.null_flag else []
        else:
            indices = [
                encoder.values.index(value) + 1 if value in encoder.values else 0
                for value in column.to_pylist()
            ]
            hidden = hidden + weights["categories.weight"][offset + np.array(indices)]
            offset += len(encoder.values) + 1
    clip = manifest.architecture.configuration["clip"]
    x = np.clip(np.stack([*numbers, *flags], axis=1), -clip, clip)  # type: ignore[type-var,operator]
    x = x @ weights["numbers.weight"].T + weights["numbers.bias"] + hidden
    for layer in range(len(manifest.architecture.configuration["widths"]) - 1):  # type: ignore[arg-type]
        x = np.maximum(x, 0)
        x = x @ weights[f"layers.{layer}.weight"].T + weights[f"layers.{layer}.bias"]
    exponentials = np.exp(x - x.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def digest_of(model: str) -> str:
    """The committed pack of this model."""
    models = FLIGHTS / "models"
    for folder in models.iterdir():
        digest = f"sha256:{folder.name}"
        if read_manifest(models, digest).contract.name == model:
            return digest
    raise AssertionError(f"no pack of {model}")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", ["delay", "delay_small"])
def test_served_probabilities_equal_offline_ones(client: Client, model: str) -> None:
    """Requests of one row and of many, from one model: max abs difference ≤ 1e-5."""
    table = december()
    manifest = read_manifest(FLIGHTS / "models", digest_of(model))
    view_sql = read_view(FLIGHTS / "models", digest_of(model))
    expected = offline_probabilities(manifest, view_sql, table)
    rows = request_rows(
        table,
        ["scheduled_at", "carrier", "flight", "tailnum", "origin", "dest", "distance_mi",
         "sched_dep_local"],
    )  # fmt: skip
    served = []
    for start, stop in [*((i, i + 1) for i in range(100)), (100, 107), (107, 250), (250, ROWS)]:
        result = client.infer(model, rows=rows[start:stop])
        served += [[p.probabilities[label] for label in manifest.contract.labels]
                   for p in result.predictions]  # fmt: skip
        output = np.asarray(result.outputs["probabilities"])
        np.testing.assert_allclose(output, served[start:stop], atol=1e-6)
    assert len(served) == ROWS
    difference = float(np.abs(np.array(served) - expected).max())
    assert difference <= DIFFERENCE_MAX
    print(f"{model}: max abs difference {difference:.2e} over {ROWS} rows")
