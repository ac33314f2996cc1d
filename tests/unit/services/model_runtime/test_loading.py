"""Loading: from a digest in a home to a model that answers, or a reason."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.errors import MeshError
from services.jobs.bench_packs import sleepy, tiny
from services.jobs.pack_writer import write_pack
from services.model_runtime import memory
from services.model_runtime.costs import Costs
from services.model_runtime.loading import Loader
from shared.clock import SYSTEM
from shared.pack_cache import VerifiedCache
from shared.packs import pack_path


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    """A loader over an empty `models/`."""
    models = tmp_path / "models"
    return Loader(models, VerifiedCache(models, tmp_path / "verified"), 256, SYSTEM)


def test_a_pack_becomes_a_model_with_its_times(
    loader: Loader, make_batch: Callable[..., Any]
) -> None:
    """Verified, mapped, warmed; then it computes what was packed."""
    digest = write_pack(tiny(), loader.models_dir)
    model, times = loader.load("tiny", digest, 0)
    assert times.bytes == sum(array.nbytes for array in tiny().tensors.values())
    assert min(times.verify_us, times.map_us, times.warm_us) > 0
    outcome = model.run(make_batch([3], model="tiny", columns=64), SYSTEM.monotonic_us())
    x = np.arange(3 * 64, dtype=np.float64).reshape(3, 64)
    weights = tiny().tensors
    hidden = np.maximum(x @ weights["layers.0.weight"].T + weights["layers.0.bias"], 0)
    expected = hidden @ weights["layers.1.weight"].T + weights["layers.1.bias"]
    (output,) = outcome.outputs
    y = np.frombuffer(output.data, "<f4").reshape(3, 2)
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    model.close()


def test_a_model_without_weights_loads(loader: Loader, make_batch: Callable[..., Any]) -> None:
    """`sleepy` doubles; it never runs on the loop."""
    model, _ = loader.load("sleepy", write_pack(sleepy(), loader.models_dir), 0)
    outcome = model.run(make_batch([2], model="sleepy", columns=1), SYSTEM.monotonic_us())
    assert np.frombuffer(outcome.outputs[0].data, "<f4").tolist() == [0, 2]
    assert outcome.times.forward >= 5_400
    assert not model.is_inline(1)


def test_what_batches_cost_is_measured_once(tmp_path: Path, loader: Loader) -> None:
    """A second load of the pack in this home, by any process, takes the recorded cost; one with
    other threads measures again."""
    digest = write_pack(tiny(), loader.models_dir)
    costs = Costs(tmp_path / "costs", "sha256:" + "0" * 64, 1)
    remembering = replace(loader, costs=costs)
    remembering.load("tiny", digest, 0)
    assert costs.recorded(digest) is not None
    costs.record(digest, 1.0, 1.0)  # a second a batch: far too dear for the loop
    model, _ = remembering.load("tiny", digest, 0)
    assert not model.is_inline(1)
    replace(remembering, costs=replace(costs, threads=2)).load("tiny", digest, 0)
    assert costs.recorded(digest) is None, "the last to measure recorded for its own threads"


def test_a_pack_of_another_model_is_refused(loader: Loader) -> None:
    """A policy cannot serve one model under another's name."""
    digest = write_pack(tiny(), loader.models_dir)
    with pytest.raises(MeshError, match="is of model tiny, not delay"):
        loader.load("delay", digest, 0)


def test_an_absent_and_an_altered_pack_are_refused(loader: Loader) -> None:
    """PACK_INVALID with the reason."""
    digest = write_pack(tiny(), loader.models_dir)
    with pytest.raises(MeshError, match="PACK_INVALID"):
        loader.load("tiny", "sha256:" + "0" * 64, 0)
    weights = pack_path(loader.models_dir, digest) / "weights.safetensors"
    weights.chmod(0o644)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(MeshError, match=r"PACK_INVALID: .* has digest"):
        loader.load("tiny", digest, 0)


def test_weights_beyond_the_budget_are_refused_before_they_are_mapped(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the budget they load; one byte over it they do not; nor when the machine lacks memory."""
    digest = write_pack(tiny(), loader.models_dir)
    bytes_ = sum(array.nbytes for array in tiny().tensors.values())
    budget = 256 * 1024 * 1024
    loader.load("tiny", digest, budget - bytes_)
    with pytest.raises(MeshError, match="memory_mib_max is 256") as caught:
        loader.load("tiny", digest, budget - bytes_ + 1)
    assert caught.value.name == "MEMORY_EXHAUSTED"
    monkeypatch.setattr(memory, "available_bytes", lambda: bytes_)
    with pytest.raises(MeshError, match="80%"):
        loader.load("tiny", digest, 0)


def test_memory_is_what_the_kernel_says() -> None:
    """Resident at least private; some is available."""
    used = memory.used(7)
    assert used.rss_bytes > used.private_bytes > 0
    assert used.weights_bytes == 7
    assert memory.available_bytes() > 0
