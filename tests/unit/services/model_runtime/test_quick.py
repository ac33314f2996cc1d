"""The quick way and `Model.run` against each other: the same answers; what is quick is exactly what
is common and good."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from contracts.errors import MeshError
from contracts.execution import Execute, Executed
from contracts.inference import Tensor
from contracts.pack import Manifest
from services.jobs.bench_packs import tiny
from services.model_runtime.backends.base import Lane
from services.model_runtime.backends.torch_module import TorchModule, pin_numerics
from services.model_runtime.batch import check_counts
from services.model_runtime.config import credits_batches, lane_rows_max
from services.model_runtime.mapping import Array
from services.model_runtime.model import Model
from services.model_runtime.quick import Quick
from shared.clock import ManualClock

COLUMNS = 64
WAITED_US = 1_000
NOTHING = "sha256:" + "0" * 64


@pytest.fixture(autouse=True, scope="module")
def pinned() -> Iterator[None]:
    """One thread, deterministic; put back afterwards."""
    threads = torch.get_num_threads()
    pin_numerics(1)
    yield
    torch.set_deterministic_debug_mode("default")
    torch.set_num_threads(threads)


def manifest() -> Manifest:
    """Of `tiny`, an mlp from x FP32 [n, 64] to y FP32 [n, 2]."""
    draft = tiny()
    return Manifest(
        format=1,
        contract=draft.contract,
        architecture=draft.architecture,
        files=[],
        tensors=[],
        weights=NOTHING,
        provenance=draft.provenance,
    )


class Cheap(TorchModule):
    """Whatever the machine does, every batch is for the loop."""

    def cost(self, rows: int) -> float:
        """Nothing."""
        return 0.0


def load() -> tuple[Model, Cheap, ManualClock]:
    """`tiny`, and a clock at which `WAITED_US` have passed since the batch came at 0."""
    backend = Cheap.load(manifest(), tiny().tensors, {})
    assert isinstance(backend, Cheap)
    clock = ManualClock(monotonic_s=WAITED_US / 1e6)
    return Model(manifest(), backend, None, clock), backend, clock


def tensor(x: Array, **parts: Any) -> Tensor:
    """`x` as the orchestrator sends it, with these parts changed."""
    fields = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    return Tensor(**fields | {"data": memoryview(x.tobytes())} | parts)


def batch(x: Array, counts: list[int], **parts: Any) -> Execute:
    """A batch in time, with these parts changed."""
    fields: dict[str, Any] = {
        "model_name": "tiny",
        "model_version": "1",
        "rows": counts,
        "risk_levels": [2] * len(counts),
        "deadlines_us": [WAITED_US + 1] * len(counts),
        "tensors": [tensor(x)],
        "trace_ids": [f"{index:032x}" for index in range(len(counts))],
    }
    return Execute(**fields | parts)


def numbers(rows: int, seed: int) -> Array:
    """Standard normal rows."""
    x: Array = np.random.default_rng(seed).standard_normal((rows, COLUMNS)).astype("<f4")
    return x


def quick_of(model: Model) -> Quick:
    """The model's; it has one."""
    assert model.quick is not None
    return model.quick


def assert_same(answer: Executed, model: Model, work: Execute) -> None:
    """The general way gives this answer too, bit for bit."""
    outcome = model.run(work, 0)
    assert msgspec.msgpack.encode(answer.outputs) == msgspec.msgpack.encode(outcome.outputs)
    assert (answer.predictions, answer.errors) == (outcome.predictions, outcome.errors) == ([], {})
    assert (answer.received_us, answer.wait_us) == (0, outcome.times.started) == (0, WAITED_US)
    assert answer.credits == credits_batches


COUNTS = st.lists(st.integers(1, 5), min_size=1, max_size=40)


@given(COUNTS, st.integers(0, 2**32 - 1))
def test_what_is_common_and_good_is_quick_and_the_same_to_the_bit(
    counts: list[int], seed: int
) -> None:
    """Up to `lane_rows_max` rows; a larger batch is left to the general way."""
    model, _, _ = load()
    rows = sum(counts)
    work = batch(numbers(rows, seed), counts)
    answer = quick_of(model).run(work, 0)
    assert (answer is not None) == (rows <= lane_rows_max)
    if answer is not None:
        assert_same(answer, model, work)


SPOILED = {
    "another name": lambda x: {"tensors": [tensor(x, name="z")]},
    "another datatype": lambda x: {"tensors": [tensor(x, datatype="INT32")]},
    "a row too many": lambda x: {"tensors": [tensor(np.concatenate([x, x[:1]]))]},
    "another shape of as many numbers": lambda x: {"tensors": [tensor(x.reshape(-1, 32))]},
    "a flat shape": lambda x: {"tensors": [tensor(x, shape=[x.size])]},
    "too few bytes": lambda x: {"tensors": [tensor(x, data=memoryview(x.tobytes()[:-4]))]},
    "too many bytes": lambda x: {"tensors": [tensor(x, data=memoryview(x.tobytes() + bytes(4)))]},
    "a list of numbers": lambda x: {"tensors": [tensor(x, data=x.reshape(-1).tolist())]},
    "no tensor": lambda x: {"tensors": []},
    "two tensors": lambda x: {"tensors": [tensor(x), tensor(x)]},
    "all late": lambda x: {"deadlines_us": [WAITED_US] * len(x)},
    "one late": lambda x: {"deadlines_us": [WAITED_US + 1] * (len(x) - 1) + [WAITED_US]},
    "not finite": lambda x: {"tensors": [tensor(np.where(x == x.max(), np.float32("nan"), x))]},
    "infinite": lambda x: {"tensors": [tensor(np.where(x == x.max(), np.float32("inf"), x))]},
}


@given(st.sampled_from(list(SPOILED)), st.integers(1, lane_rows_max), st.integers(0, 2**32 - 1))
def test_what_is_not_good_is_left_to_the_general_way_which_names_it(
    how: str, rows: int, seed: int
) -> None:
    """At least one row has an error, whose text one place writes; the next batch is untouched."""
    model, _, _ = load()
    x = numbers(rows, seed)
    good = batch(x, [1] * rows)
    spoiled = msgspec.structs.replace(good, **SPOILED[how](x))
    assert quick_of(model).run(spoiled, 0) is None
    assert model.run(spoiled, 0).errors
    answer = quick_of(model).run(good, 0)
    assert answer is not None
    assert_same(answer, model, good)


@pytest.mark.parametrize(
    "parts",
    [
        *({"rows": counts} for counts in ([0, 2], [-1, 3], [2], [0])),
        {"risk_levels": [1]},
        *({"deadlines_us": [9_000] * requests} for requests in (1, 3)),
    ],
)
def test_counts_that_disagree_are_never_quick(parts: dict[str, Any]) -> None:
    """`check_counts` refuses each of them."""
    model, _, _ = load()
    work = batch(numbers(2, 1), [1, 1], **parts)
    assert quick_of(model).run(work, 0) is None
    with pytest.raises(MeshError, match="INVALID_REQUEST"):
        check_counts(work)


def test_finite_numbers_whose_sum_overflows_pass() -> None:
    """Each number is judged, not their sum."""
    model, _, _ = load()
    work = batch(np.repeat(numbers(1, 1) * np.float32(1e37), lane_rows_max, axis=0), [64])
    answer = quick_of(model).run(work, 0)
    assert answer is not None
    y = np.frombuffer(answer.outputs[0].data, "<f4").reshape(-1, 2)  # type: ignore[arg-type]
    with np.errstate(over="ignore"):
        assert np.isinf(y.sum(axis=0)).any()
    assert_same(answer, model, work)


def test_a_batch_too_dear_for_the_loop_is_not_quick() -> None:
    """As for every other batch, the measured cost decides."""
    model, backend, _ = load()
    backend.cost = lambda rows: float(rows > 1)  # type: ignore[method-assign]
    assert quick_of(model).run(batch(numbers(1, 1), [1]), 0) is not None
    assert quick_of(model).run(batch(numbers(2, 1), [1, 1]), 0) is None


def test_a_forward_that_raises_is_left_to_the_general_way() -> None:
    """It meets the error again, logs it and names it."""
    model, backend, _ = load()
    lane = backend.lane(1)
    assert lane is not None

    def fail() -> None:
        raise RuntimeError("no")

    failing = Lane(lane.input, lane.output, lane.numbers, fail)
    backend.lane = lambda rows: failing  # type: ignore[method-assign,assignment]
    assert quick_of(model).run(batch(numbers(1, 1), [1]), 0) is None


def test_stages_are_measured_one_after_another() -> None:
    """Forward is the forward's; everything after `wait` adds up to `sent`."""
    model, backend, clock = load()
    lane = backend.lane(1)
    assert lane is not None

    def slow() -> None:
        clock.advance(0.25)
        lane.forward()

    slowed = Lane(lane.input, lane.output, lane.numbers, slow)
    backend.lane = lambda rows: slowed  # type: ignore[method-assign,assignment]
    answer = quick_of(model).run(batch(numbers(1, 1), [1]), 0)
    assert answer is not None
    assert (answer.tokenize_us, answer.forward_us, answer.postprocess_us) == (0, 250_000, 0)
    assert answer.sent_us == WAITED_US + 250_000


@pytest.mark.parametrize("rows", range(1, lane_rows_max + 1))
def test_a_lane_has_the_bits_of_the_linear_layers(rows: int) -> None:
    """`addmm` into fixed memory is `linear` with another address: difference 0 at every count."""
    _, backend, _ = load()
    weights = {name: torch.from_numpy(array) for name, array in tiny().tensors.items()}
    x = numbers(rows, rows)
    hidden = functional.linear(
        torch.from_numpy(x), weights["layers.0.weight"], weights["layers.0.bias"]
    )
    y = functional.linear(
        torch.relu(hidden), weights["layers.1.weight"], weights["layers.1.bias"]
    ).numpy()
    lane = backend.lane(rows)
    assert lane is not None
    lane.input[:] = x.tobytes()
    lane.forward()
    assert bytes(lane.output) == y.tobytes() == backend.forward([x], rows)[0].tobytes()


def test_only_a_plain_mlp_has_lanes() -> None:
    """Another architecture, other weights, another contract: the general way."""
    whole, tensors = manifest(), tiny().tensors
    twice = msgspec.structs.replace(whole.contract, outputs=whole.contract.outputs * 2)
    halves = {name: array.astype(np.float64) for name, array in tensors.items()}
    assert TorchModule.load(whole, tensors, {}).lane(1) is not None
    assert (
        TorchModule.load(msgspec.structs.replace(whole, contract=twice), tensors, {}).lane(1)
        is None
    )
    assert TorchModule.load(whole, halves, {}).lane(1) is None
    assert TorchModule.load(whole, tensors, {}).lane(lane_rows_max + 1) is None
    assert TorchModule.load(whole, tensors, {}).lane(0) is None


def test_a_classifier_is_never_quick() -> None:
    """Its answer has predictions."""
    _, backend, clock = load()
    contract = msgspec.structs.replace(manifest().contract, task="classifier")
    assert Quick.of(contract, backend, clock.monotonic_us) is None


def test_a_closed_model_keeps_no_lane() -> None:
    """Its weights' maps go with it."""
    model, backend, _ = load()
    model.close()
    assert model.quick is None
    assert backend.lane(1) is None
