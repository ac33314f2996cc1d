"""The torch backend: the allow-list, its numbers, its buffers, its cost."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from contracts.errors import MeshError
from contracts.pack import Architecture, ColumnEncoder, Manifest, ViewReference
from services.jobs.bench_packs import tiny
from services.model_runtime.backends import lanes, torch_memory
from services.model_runtime.backends.architectures import ARCHITECTURES, Tabular, build
from services.model_runtime.backends.torch_module import TorchModule, pin_numerics
from services.model_runtime.config import buffer_rows, warm_rows
from services.model_runtime.encoding import input_shapes
from services.model_runtime.mapping import Array

NOTHING = "sha256:" + "0" * 64


@pytest.fixture(autouse=True)
def pinned() -> Iterator[None]:
    """One thread, deterministic; put back afterwards."""
    threads = torch.get_num_threads()
    pin_numerics(1)
    yield
    torch.set_deterministic_debug_mode("default")
    torch.set_num_threads(threads)


def manifest(draft: Any) -> Manifest:
    """The manifest of a draft, as far as a backend reads it."""
    return Manifest(
        format=1,
        contract=draft.contract,
        architecture=draft.architecture,
        encoders=list(draft.encoders),
        files=[],
        tensors=[],
        weights=NOTHING,
        provenance=draft.provenance,
    )


def load_tiny() -> TorchModule:
    """`tiny` over read-only arrays."""
    arrays = dict(tiny().tensors)
    for array in arrays.values():
        array.flags.writeable = False
    return TorchModule.load(manifest(tiny()), arrays, {})


def expected(x: Array) -> Array:
    """`tiny` in double precision."""
    weights = {name: array.astype(np.float64) for name, array in tiny().tensors.items()}
    hidden = np.maximum(x @ weights["layers.0.weight"].T + weights["layers.0.bias"], 0)
    y: Array = hidden @ weights["layers.1.weight"].T + weights["layers.1.bias"]
    return y


@pytest.mark.parametrize("rows", [1, 7, 32, buffer_rows, buffer_rows + 1])
def test_tiny_computes_what_its_weights_say(rows: int) -> None:
    """Max abs difference to double precision ≤ 1e-5, whatever the batch size."""
    x = np.random.default_rng(rows).standard_normal((rows, 64)).astype(np.float32)
    (y,) = load_tiny().forward([x], rows)
    assert (y.dtype, y.shape) == (np.float32, (rows, 2))
    assert np.abs(y - expected(x)).max() <= 1e-5


def test_a_model_with_much_to_read_has_no_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane would save nothing beside reading the weights, and cost private memory."""
    assert load_tiny().lane(1) is not None
    monkeypatch.setattr(lanes, "lane_weights_bytes_max", 1_000)
    assert load_tiny().lane(1) is None


def test_an_answer_outlives_the_next_forward() -> None:
    """Only inputs are buffered; outputs are fresh."""
    model = load_tiny()
    x = np.ones((4, 64), dtype=np.float32)
    (first,) = model.forward([x], 4)
    kept = first.copy()
    model.forward([x * 2], 4)
    np.testing.assert_array_equal(first, kept)


def test_rows_do_not_depend_on_their_batch_mates() -> None:
    """A row alone and in a full batch differ by at most 1e-5."""
    model = load_tiny()
    x = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32)
    (together,) = model.forward([x], 32)
    alone = np.concatenate([model.forward([x[row : row + 1]], 1)[0] for row in range(32)])
    assert np.abs(together - alone).max() <= 1e-5


def test_weights_are_not_copied() -> None:
    """The tensors lie in the arrays' own memory."""
    array = np.ones(4, dtype=np.float32)
    assert torch_memory.as_tensor(array, is_bfloat16=False).data_ptr() == array.ctypes.data


def test_bfloat16_weights_are_read_by_their_bits() -> None:
    """1.0 in bfloat16 is 0x3F80."""
    tensor = torch_memory.as_tensor(np.array([0x3F80], dtype=np.uint16), is_bfloat16=True)
    assert tensor.dtype == torch.bfloat16
    assert tensor.tolist() == [1.0]


def test_an_architecture_outside_the_allow_list_is_refused() -> None:
    """The message lists what is allowed."""
    with pytest.raises(ValueError, match="'evil' is not in the allow-list: mlp, tabular, sleepy"):
        build(Architecture(name="evil"), {})


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        (Architecture(name="mlp"), "'widths' is None"),
        (Architecture(name="mlp", configuration={"widths": [64, 0]}), "positive integers"),
        (Architecture(name="mlp", configuration={"widths": [64, 32]}), "expects"),
        (Architecture(name="mlp", configuration={"widths": [64, 16, 2]}), "layers.0.bias"),
        (Architecture(name="sleepy", configuration={"batch_ms": -1}), "layers.0.bias"),
    ],
)
def test_tensors_that_do_not_fit_the_architecture_are_an_invalid_pack(
    architecture: Architecture, reason: str
) -> None:
    """Named before anything computes."""
    whole = manifest(tiny())
    changed = Manifest(
        **{name: getattr(whole, name) for name in whole.__struct_fields__}
        | {"architecture": architecture}
    )
    with pytest.raises(MeshError, match="PACK_INVALID") as caught:
        TorchModule.load(changed, tiny().tensors, {})
    assert reason in caught.value.message


def test_tabular_equals_its_definition() -> None:
    """Clipped numbers through a linear map, plus one row per category, then layers."""
    random = np.random.default_rng(5)
    configuration = {"numbers": 3, "cardinalities": [4, 2], "widths": [8, 5, 2], "clip": 1.5}
    arrays = {
        name: random.standard_normal(shape).astype(np.float32)
        for name, shape in Tabular.shapes(configuration).items()
    }
    network = build(
        Architecture(name="tabular", configuration=configuration),
        {name: torch.from_numpy(array) for name, array in arrays.items()},
    )
    x = random.standard_normal((6, 3)).astype(np.float32) * 2
    categories = np.stack([random.integers(4, size=6), random.integers(2, size=6)], axis=1)
    hidden = np.clip(x, -1.5, 1.5) @ arrays["numbers.weight"].T + arrays["numbers.bias"]
    table = arrays["categories.weight"]
    hidden = np.maximum(hidden + table[categories[:, 0]] + table[4 + categories[:, 1]], 0)
    for layer in (0, 1):
        hidden = hidden @ arrays[f"layers.{layer}.weight"].T + arrays[f"layers.{layer}.bias"]
        hidden = np.maximum(hidden, 0) if layer == 0 else hidden
    (logits,) = network(torch.from_numpy(x), torch.from_numpy(categories))
    np.testing.assert_allclose(logits.numpy(), hidden, atol=1e-5)


def test_cost_grows_with_rows_and_sleepy_waits() -> None:
    """The fit goes through one row and `warm_rows` rows; a model that sleeps says so."""
    model = load_tiny()
    assert model.cost(1) == float("inf"), "nothing is known before warming"
    model.warm()
    assert 0 < model.cost(1) <= model.cost(warm_rows) < 1
    assert not model.waits
    assert ARCHITECTURES["sleepy"].waits


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried"), "MEMORY_EXHAUSTED"),
        (torch.OutOfMemoryError("CUDA out of memory"), "MEMORY_EXHAUSTED"),
        (MemoryError(), "MEMORY_EXHAUSTED"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
    ],
)
def test_running_out_of_memory_is_told_from_other_failures(
    error: Exception, name: str | None
) -> None:
    """torch raises RuntimeError for both; everything else passes through."""
    model = load_tiny()

    class Failing:
        waits = False

        def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            raise error

    model._network = Failing()
    with pytest.raises(Exception) as caught:  # noqa: PT011 — which one is what is tested
        model.forward([np.zeros((1, 64), np.float32)], 1)
    assert getattr(caught.value, "name", None) == name


def test_a_view_models_inputs_come_from_its_encoders() -> None:
    """Numbers with their null flags, and categories."""
    whole = manifest(tiny())
    contract = whole.contract
    with_view = Manifest(
        **{name: getattr(whole, name) for name in whole.__struct_fields__}
        | {
            "contract": type(contract)(
                **{name: getattr(contract, name) for name in contract.__struct_fields__}
                | {"view": ViewReference(name="v", version="1", digest=NOTHING)}
            ),
            "encoders": [
                ColumnEncoder(field="a", kind="standard", null_flag=True),
                ColumnEncoder(field="b", kind="category", values=["x"]),
            ],
        }
    )
    assert [tensor.shape for tensor in input_shapes(with_view)] == [[-1, 2], [-1, 1]]
