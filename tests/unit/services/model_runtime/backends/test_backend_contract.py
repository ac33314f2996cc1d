"""One suite that every backend passes: networks of the allow-list, exported programs in full and in
half precision, and a third-party package found by its entry point."""

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from contracts.errors import MeshError
from contracts.execution import Execute
from contracts.inference import Tensor
from services.jobs.backend_checks import CHECKS, Subject, distance
from services.jobs.bench_packs import tiny
from services.jobs.pack_writer import Draft, write_pack
from services.model_runtime import memory
from services.model_runtime.budget import needed_bytes
from services.model_runtime.loading import Loader
from services.model_runtime.model import Model
from shared.clock import SYSTEM
from shared.pack_cache import VerifiedCache
from tests.unit.services.model_runtime.backends.exported import (
    TOY,
    HalfModule,
    exported_tiny,
    forget_toy,
    pinned,
    subject,
    toy,
    write_toy_package,
)

LOADS = 40
LEAK_KIB_MAX = 2_048


def tiny_in(dtype: type[np.float16] | type[np.float32]) -> Draft:
    """`tiny` of the allow-list, in and out as well in this precision."""
    draft, datatype = tiny(), {np.float16: "FP16", np.float32: "FP32"}[dtype]
    contract = msgspec.structs.replace(
        draft.contract,
        inputs=[msgspec.structs.replace(one, datatype=datatype) for one in draft.contract.inputs],
        outputs=[msgspec.structs.replace(one, datatype=datatype) for one in draft.contract.outputs],
    )
    tensors = {name: array.astype(dtype) for name, array in draft.tensors.items()}
    return replace(draft, contract=contract, tensors=tensors)


DRAFTS: dict[str, Callable[[], Draft]] = {
    "torch module": tiny,
    "torch module, float16": lambda: tiny_in(np.float16),
    "exported program": exported_tiny,
    "exported program, bfloat16": lambda: exported_tiny(HalfModule(torch.bfloat16)),
    "exported program, float16": lambda: exported_tiny(HalfModule(torch.float16)),
    "third-party package": toy,
}


@pytest.fixture(autouse=True)
def numerics() -> Iterator[None]:
    """As in the runtime."""
    with pinned():
        yield


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Subject]]:
    """Each kind of pack, the third-party package installed."""
    folder = tmp_path_factory.mktemp("packs")
    patch = pytest.MonkeyPatch()
    write_toy_package(folder)
    patch.syspath_prepend(folder)
    yield {
        name: subject(make(), folder / str(index), ("toy",))
        for index, (name, make) in enumerate(DRAFTS.items())
    }
    patch.undo()
    forget_toy()


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("backend", DRAFTS)
def test_a_backend_keeps_the_contract(packs: dict[str, Subject], backend: str, check: str) -> None:
    """Each check of `services/jobs/backend_checks.py` finds nothing."""
    assert CHECKS[check](packs[backend]) is None


def test_exported_tiny_equals_the_torch_module_bit_for_bit(packs: dict[str, Subject]) -> None:
    """Same operators, same kernels, same bits: one row, a batch, more than a buffer."""
    module, program = packs["torch module"].load(), packs["exported program"].load()
    for rows in (1, 2, 7, 32, 64, 1_024, 1_025):
        inputs = packs["torch module"].inputs(rows)
        (one,), (other,) = module.forward(inputs, rows), program.forward(inputs, rows)
        assert one.tobytes() == np.ascontiguousarray(other).tobytes()


@pytest.mark.parametrize(("kind", "tolerance"), [("float16", 2e-3), ("bfloat16", 2e-2)])
def test_half_precision_is_within_its_documented_tolerance(
    packs: dict[str, Subject], kind: str, tolerance: float
) -> None:
    """Relative to the largest number, against the same weights in FP32 (docs/backends.md)."""
    whole = packs["torch module"]
    inputs = whole.inputs(64)
    (exact,) = whole.load().forward(inputs, 64)
    (half,) = packs[f"exported program, {kind}"].load().forward(inputs, 64)
    assert 0 < distance(exact, half) <= tolerance


@pytest.mark.parametrize("backend", ["torch module", "exported program", "third-party package"])
def test_a_row_that_breaks_the_contract_fails_alone_behind_every_backend(
    packs: dict[str, Subject], backend: str
) -> None:
    """The runtime's own checks see no difference: NaN in one row, an error in that row."""
    whole = packs[backend]
    model = Model(whole.manifest, whole.load(), None, SYSTEM)
    (x,) = whole.inputs(4)
    x[2, 1] = np.nan
    outcome = model.run(batch_of(whole, x), SYSTEM.monotonic_us())
    assert set(outcome.errors) == {2}
    assert outcome.errors[2].name == "OUTPUT_INVALID"


@pytest.mark.parametrize("backend", DRAFTS)
def test_running_out_of_memory_is_the_requests_error_and_the_next_one_works(
    packs: dict[str, Subject], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a backend calls MEMORY_EXHAUSTED, and whatever else it raises, fails that batch only."""
    whole = packs[backend]
    loaded = whole.load()
    model = Model(whole.manifest, loaded, None, SYSTEM)
    (x,) = whole.inputs(1)
    forward = loaded.forward
    error = MeshError("MEMORY_EXHAUSTED", "a forward of 1 rows")
    monkeypatch.setattr(loaded, "forward", lambda *_: raise_(error))
    failed = model.run(batch_of(whole, x), SYSTEM.monotonic_us())
    assert failed.errors[0].name == "MEMORY_EXHAUSTED"
    monkeypatch.setattr(loaded, "forward", forward)
    assert not model.run(batch_of(whole, x), SYSTEM.monotonic_us()).errors


@pytest.mark.parametrize("backend", DRAFTS)
def test_memory_is_predicted_before_a_load_and_given_back_after(
    packs: dict[str, Subject], backend: str, tmp_path: Path
) -> None:
    """40 loads and closes: private memory ends where it was, and no map of the pack stays."""
    draft = DRAFTS[backend]()
    loader = Loader(
        tmp_path, VerifiedCache(tmp_path, tmp_path / "v"), 256, SYSTEM, backends=("toy",)
    )
    digest = write_pack(draft, tmp_path)
    assert loader.predict(digest) == needed_bytes(packs[backend].manifest)

    def cycle() -> None:
        model, times = loader.load(draft.contract.name, digest, 0)
        assert times.bytes == sum(tensor.bytes for tensor in packs[backend].manifest.tensors)
        model.close()

    for _ in range(5):
        cycle()
    gc.collect()
    before = memory.used().private_bytes
    for _ in range(LOADS):
        cycle()
    gc.collect()
    grown_kib = (memory.used().private_bytes - before) / 1024
    assert grown_kib < LEAK_KIB_MAX
    assert digest.removeprefix("sha256:") not in Path(f"/proc/{os.getpid()}/maps").read_text()


def test_a_backend_that_the_home_does_not_allow_is_refused(packs: dict[str, Subject]) -> None:
    """A pack alone makes the runtime import nothing; the message says how to allow it."""
    with pytest.raises(MeshError, match=r"'toy' is not one of this home's: torch, program; if an"):
        find(packs["third-party package"], ())


@pytest.mark.parametrize(
    ("source", "value", "reason"),
    [
        (TOY, "absent_module:Toy", "cannot be imported: ModuleNotFoundError"),
        (TOY, "toy_backend:Absent", "cannot be imported: AttributeError"),
        (TOY.replace("def cost", "def price"), "toy_backend:Toy", "lacks cost of a backend"),
        ("raise RuntimeError('no licence')", "toy_backend:Toy", "RuntimeError: no licence"),
    ],
)
def test_a_package_that_is_no_backend_is_refused_with_the_reason(
    packs: dict[str, Subject],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    value: str,
    reason: str,
) -> None:
    """Broken import, missing class, missing method: named, with the entry point's value."""
    write_toy_package(tmp_path, source, value)
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    forget_toy()
    with pytest.raises(MeshError, match="PACK_INVALID") as caught:
        find(packs["third-party package"], ("toy",))
    assert reason in caught.value.message
    forget_toy()


def test_a_package_that_is_not_installed_is_said_to_be_absent(
    packs: dict[str, Subject], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the group that it must declare."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(MeshError, match=r"group mortise\.backends is needed, none has it"):
        find(packs["third-party package"], ("toy",))


def find(whole: Subject, allowed: tuple[str, ...]) -> object:
    """The subject's backend where these are allowed."""
    from services.model_runtime.backends.registry import find_backend

    return find_backend(whole.manifest, allowed)


def raise_(error: Exception) -> None:
    """An expression that raises."""
    raise error


def batch_of(whole: Subject, x: np.ndarray) -> Execute:
    """One request a row."""
    contract = whole.manifest.contract
    return Execute(
        model_name=contract.name,
        model_version="1",
        rows=[1] * len(x),
        risk_levels=[2] * len(x),
        deadlines_us=[60_000_000] * len(x),
        tensors=[
            Tensor(
                name=contract.inputs[0].name,
                datatype=contract.inputs[0].datatype,
                shape=list(x.shape),
                data=memoryview(x.tobytes()),
            )
        ],
        trace_ids=[f"{row:032x}" for row in range(len(x))],
    )
