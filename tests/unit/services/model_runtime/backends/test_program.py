"""Exported programs: what is refused and how it is said, rows of any number, nothing shared."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from contracts.errors import MeshError
from contracts.pack import ModelContract, TensorContract
from services.jobs.backend_checks import distance
from services.jobs.bench_packs import tiny
from services.jobs.export_program import export
from services.jobs.pack import program_draft
from services.jobs.pack_writer import Draft
from services.model_runtime.backends import plan, program_rules
from services.model_runtime.backends.operators import (
    ABSENT_IS_PINNED,
    ARITHMETIC,
    ATEN,
    KEYWORDS_LEFT_OUT,
    MEASURES,
    PINNED,
    resolve,
)
from tests.fuzz.programs import Rich, rich, run
from tests.unit.services.model_runtime.backends.exported import (
    Subject,
    exported_tiny,
    pinned,
    subject,
    with_program,
)

FUZZED = 200


@pytest.fixture(autouse=True)
def numerics() -> Iterator[None]:
    """As in the runtime."""
    with pinned():
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """`tiny` as a program."""
    return subject(exported_tiny(), tmp_path_factory.mktemp("tiny") / "pack")


def changed(whole: Subject, change: Callable[[dict[str, Any]], Any]) -> Subject:
    """The pack with its graph changed."""
    program = json.loads(whole.files["program.json"])
    change(program)
    return with_program(whole, json.dumps(program).encode())


def set_node(place: int, **fields: Any) -> Callable[[dict[str, Any]], Any]:
    """A change of one node."""
    return lambda program: program["nodes"][place].update(fields)


def value(name: str) -> dict[str, str]:
    """A reference."""
    return {"kind": "value", "name": name}


X = value("x")
REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another format": (
        lambda p: p.update(format=2),
        "format 2, this runtime reads format 1; update Mortise, or make the pack again",
    ),
    "an unknown field": (lambda p: p.update(code="import os"), "unknown field `code`"),
    "an operator that writes": (
        set_node(1, operator="aten.relu_.default"),
        "node 1 (aten.relu_.default → relu): its operator is not in the allow-list; write the",
    ),
    "another namespace": (set_node(1, operator="prims.abs.default"), "not in the allow-list"),
    "a Python name": (set_node(1, operator="os.system"), "not in the allow-list"),
    "a dunder": (set_node(1, operator="aten.__class__.mro"), "not in the allow-list"),
    "memory of others": (
        set_node(1, operator="aten.empty_like.default"),
        "not in the allow-list",
    ),
    "views beyond a row": (
        set_node(1, operator="aten.as_strided.default"),
        "not in the allow-list",
    ),
    "random numbers": (
        set_node(1, operator="aten.dropout.default", arguments=[X, 0.5, True]),
        "train is True, only False is allowed: export the model in eval mode",
    ),
    "random numbers by an absent argument": (
        set_node(1, operator="aten.dropout.default", arguments=[X, 0.5]),
        "train is None, only False",
    ),
    "statistics written into weights": (
        set_node(
            1,
            operator="aten.batch_norm.default",
            arguments=[X, None, None, None, None, 1, 0.1, 1e-5, False],
        ),
        "training is 1, only False",
    ),
    "a division that can end the process": (
        set_node(
            1,
            operator="aten.div.Tensor_mode",
            arguments=[X, X],
            keywords={"rounding_mode": "trunc"},
        ),
        "'trunc' is not allowed: of whole numbers it can end the process; trunc(a / b)",
    ),
    "statistics that are too short": (
        lambda p: p["nodes"].append(
            {
                "operator": "aten._native_batch_norm_legit_no_training.default",
                "arguments": [X, None, None, *[value("p_last_bias")] * 2, 0.1, 1e-5],
                "output": ["normal", "", ""],
            }
        ),
        "RuntimeError: running_mean should contain 64 elements not 2",
    ),
    "a device": (set_node(1, keywords={"device": "cuda"}), "keyword 'device' is the backend's"),
    "a value that is not there": (
        set_node(1, arguments=[value("nowhere")]),
        "value 'nowhere' is not given before it",
    ),
    "a value from later": (
        set_node(0, arguments=[value("relu")]),
        "value 'relu' is not given before it",
    ),
    "a value given twice": (set_node(1, output="x"), "value 'x' is given twice"),
    "no value": (set_node(1, output=[]), "gives no value"),
    "more values than there are": (
        set_node(1, output=["relu", "b"]),
        "node 1 (aten.relu.default → relu, b) fails for 1 rows: ValueError: gives 1 values, 2 are",
    ),
    "a datatype that is none": (
        set_node(
            1,
            operator="aten.to.dtype",
            arguments=[X, {"kind": "datatype", "name": "COMPLEX64"}],
        ),
        "datatype 'COMPLEX64' is none of",
    ),
    "arithmetic of text": (
        set_node(1, operator="size.multiply", arguments=["a", 2**60]),
        "arithmetic of sizes takes numbers, received a",
    ),
    "arithmetic of tensors": (
        set_node(1, operator="size.multiply", arguments=[X, X]),
        "arithmetic of sizes takes numbers",
    ),
    "the size of nothing": (set_node(1, operator="size.of", arguments=[1, 0]), "takes a tensor"),
    "a size as an output": (
        lambda p: (
            p["nodes"].append({"operator": "size.of", "arguments": [X, 0], "output": "n"}),
            p.update(outputs=["n"]),
        ),
        "output 'n' is no tensor of the program",
    ),
    "an output that is not there": (
        lambda p: p.update(outputs=["nowhere"]),
        "output 'nowhere' is no tensor",
    ),
    "two outputs": (
        lambda p: p.update(outputs=["relu", "linear_1"]),
        "2 outputs, the model's contract has 1",
    ),
    "another input": (
        lambda p: p["inputs"][0].update(shape=[-1, 32]),
        "its inputs are FP32 [-1, 32], the model's are FP32 [-1, 64]",
    ),
    "an output of another shape": (
        lambda p: p.update(outputs=["relu"]),
        "output y is [1, 32] for 1 rows, the contract says [1, 2]; export it with a dynamic number",
    ),
    "an output of another datatype": (
        lambda p: (
            p["nodes"].append(
                {
                    "operator": "aten.to.dtype",
                    "arguments": [value("linear_1"), {"kind": "datatype", "name": "FP64"}],
                    "output": "wide",
                }
            ),
            p.update(outputs=["wide"]),
        ),
        "output y is float64, the contract says FP32; convert it inside the model",
    ),
    "a missing weight": (
        lambda p: p["weights"][0].update(tensor="absent"),
        "weight 'absent' is missing from the pack; make the pack again: mortise pack",
    ),
    "an extra tensor": (
        lambda p: p["weights"].pop(),
        "of the pack is no weight of it; make the pack again",
    ),
    "a weight used twice": (
        lambda p: p["weights"].append({**p["weights"][0], "name": "again"}),
        "is used twice",
    ),
    "a weight of another shape": (
        lambda p: p["weights"][0].update(shape=[64, 32]),
        "the program expects FP32 [64, 32], the pack has FP32 [32, 64]",
    ),
    "a weight of another datatype": (
        lambda p: p["weights"][0].update(datatype="FP16"),
        "the program expects FP16 [32, 64], the pack has FP32 [32, 64]",
    ),
    "shapes that do not fit": (
        set_node(2, arguments=[X, value("p_last_weight"), value("p_last_bias")]),
        "node 2 (aten.linear.default → linear_1) fails for 1 rows: RuntimeError: ",
    ),
    "a number of rows written down": (
        lambda p: (
            p["nodes"].append(
                {
                    "operator": "aten.view.default",
                    "arguments": [value("linear_1"), [3, 2]],
                    "output": "fixed",
                }
            ),
            p.update(outputs=["fixed"]),
        ),
        "fails for 1 rows: RuntimeError: shape '[3, 2]' is invalid for input of size 2",
    ),
    "a value that grows": (
        lambda p: p["nodes"].append(
            {
                "operator": "aten.expand.default",
                "arguments": [value("relu"), [2**20, 2**20, 1, 32]],
                "output": "huge",
            }
        ),
        "value_mib_max is 1024",
    ),
    "sizes that grow for ever": (
        lambda p: p["nodes"].extend(
            {
                "operator": "size.multiply",
                "arguments": [2**40 if step == 0 else value(f"s{step - 1}")] * 2,
                "output": f"s{step}",
            }
            for step in range(40)
        ),
        "ValueError: a computed size is",
    ),
    "too deep a list": (set_node(1, arguments=[[[X]]]), "Expected `"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_program_that_breaks_a_rule_is_refused_by_name(whole: Subject, what: str) -> None:
    """PACK_INVALID with what, where, and what to do."""
    change, reason = REFUSED[what]
    with pytest.raises(MeshError) as caught:
        changed(whole, change).load()
    assert caught.value.name == "PACK_INVALID"
    assert reason in caught.value.message


def test_a_truncated_file_is_refused_wherever_it_is_cut(whole: Subject) -> None:
    """Every prefix, at 100 places."""
    content = whole.files["program.json"].rstrip()
    for end in range(0, len(content), max(1, len(content) // 100)):
        with pytest.raises(MeshError, match="PACK_INVALID"):
            with_program(whole, content[:end]).load()
    with pytest.raises(MeshError, match=r"has no program\.json"):
        replace(whole, files={}).load()


def test_a_file_over_the_limit_is_refused_unread(
    whole: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit it is read."""
    size = len(whole.files["program.json"])
    monkeypatch.setattr(program_rules, "program_bytes_max", size)
    whole.load()
    monkeypatch.setattr(program_rules, "program_bytes_max", size - 1)
    with pytest.raises(MeshError, match=f"{size} bytes, program_bytes_max is {size - 1}"):
        whole.load()


def test_mutated_files_are_refused_or_harmless() -> None:
    """200 files of one seed: no crash, no other error, no weight changed (20,000 by hand)."""
    found = run(FUZZED, seed=7)
    assert found["files"] == FUZZED
    assert found["refused"] > FUZZED // 2


def test_every_operator_exists_computes_afresh_and_draws_nothing() -> None:
    """No schema of the list writes; those that could draw random numbers are pinned not to."""
    for name in sorted(ATEN):
        _, packet, overload = name.split(".")
        found = getattr(getattr(torch.ops.aten, packet), overload)
        assert not found._schema.is_mutable, name
        assert name in PINNED or torch.Tag.nondeterministic_seeded not in found.tags, name
        names = [one.name for one in found._schema.arguments]
        assert "generator" not in names, name
        placed = [one.name for one in found._schema.arguments if not one.kwarg_only]
        assert not set(placed) & (KEYWORDS_LEFT_OUT - {"non_blocking"}), name
        assert not packet.startswith("empty"), name
        assert callable(resolve(name))
    for name, (place, argument, fixed) in PINNED.items():
        _, packet, overload = name.split(".")
        schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
        assert schema.arguments[place].name == argument
        if name in ABSENT_IS_PINNED:
            assert schema.arguments[place].default_value == fixed
    assert all(callable(resolve(name)) for name in (*ARITHMETIC, *MEASURES))


def test_the_checked_batch_norm_gives_the_operators_own_bits() -> None:
    """What stands in for the unchecked operator is the same kernel."""
    name = "_native_batch_norm_legit_no_training"
    torch.manual_seed(1)
    for shape in ((3, 5), (2, 5, 7), (2, 5, 4, 4)):
        x, (weight, bias, mean) = torch.randn(shape), torch.randn(3, 5)
        variance = torch.rand(5)
        for given in ((weight, bias), (None, None)):
            arguments = (x, *given, mean, variance, 0.1, 1e-5)
            own = getattr(torch.ops.aten, name).default(*arguments)
            ours = resolve(f"aten.{name}.default")(*arguments)
            assert all(torch.equal(one, other) for one, other in zip(own, ours, strict=True))


def test_an_operator_that_this_torch_lacks_is_said_so(
    whole: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allowed name that is gone from the library."""

    def lacking(name: str) -> None:
        raise LookupError(f"torch 9 has no {name}")

    monkeypatch.setattr(plan, "resolve", lacking)
    with pytest.raises(MeshError, match=r"torch 9 has no aten\.linear\.default; install the torch"):
        whole.load()


class Passing(torch.nn.Module):
    """Gives its input, a view of it, and a view of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(6.0).reshape(2, 3))
        self.table: Tensor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[n, 3] → three of [n, 3]."""
        return x, x.view(-1, 3), self.table[0].expand(x.shape[0], 3)


def draft(module: torch.nn.Module, outputs: int, width: int = 3) -> Draft:
    """A pack of a module from [n, width] to outputs of [n, width]."""
    exported = export(module, [torch.randn(3, width)], 64)
    contract = ModelContract(
        name="m",
        task="tensor",
        inputs=[TensorContract(name="x", datatype="FP32", shape=[-1, width])],
        outputs=[
            TensorContract(name=f"y{place}", datatype="FP32", shape=[-1, width])
            for place in range(outputs)
        ],
        rows_max=64,
    )
    return program_draft(contract, exported, tiny().provenance)


def test_outputs_never_lie_in_inputs_or_weights(tmp_path: Path) -> None:
    """An input handed through is copied: the next batch would overwrite it."""
    backend = subject(draft(Passing(), 3), tmp_path / "pack").load()
    x = np.ones((4, 3), np.float32)
    outputs = backend.forward([x], 4)
    backend.forward([x * 9], 4)
    for output in outputs[:2]:
        np.testing.assert_array_equal(output, x)
    outputs[2][:] = 7
    np.testing.assert_array_equal(backend.forward([x], 4)[2][0], [0, 1, 2])


def test_size_arithmetic_follows_the_rows(tmp_path: Path) -> None:
    """Reshapes by multiples of the row count, for every count from 1 to the contract's maximum."""

    class Sizes(torch.nn.Module):
        """Folds and unfolds the rows."""

        def forward(self, x: Tensor) -> Tensor:
            """[n, 4] → [n, 4]."""
            rows = x.shape[0]
            y = x.reshape(rows * 2, 2).reshape(rows * 4 // 2, 2).reshape(rows, 4)
            return y * (rows / x.shape[0]) + torch.arange(rows)[:, None] * 0

    backend = subject(draft(Sizes(), 1, 4), tmp_path / "pack").load()
    for rows in range(1, 65):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        np.testing.assert_array_equal(backend.forward([x], rows)[0], x)


def test_a_rich_module_equals_its_program(tmp_path: Path) -> None:
    """Attention, convolution, batch normalisation, several values from one call: 1e-5, because
    which fused attention torch takes depends on more than its arguments."""
    whole = rich(tmp_path / "pack")
    torch.manual_seed(1)
    module, backend = Rich().eval(), whole.load()
    for rows in (1, 2, 5, 32, 64):
        (x,) = whole.inputs(rows)
        expected = module(torch.from_numpy(x)).detach().numpy()
        assert distance(expected, backend.forward([x], rows)[0]) <= 1e-5


@pytest.mark.slow
def test_a_recurrent_layer_is_decomposed_and_equals_its_module(tmp_path: Path) -> None:
    """Its own operator trusts the state's shape (decision 0021); core operators differ by 1e-5."""

    class Recurrent(torch.nn.Module):
        """Three steps of four."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer = torch.nn.LSTM(4, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            """[n, 12] → [n, 12]."""
            y: Tensor = self.layer(x.view(-1, 3, 4))[0].flatten(1)
            return y

    module = Recurrent().eval()
    whole = subject(draft(module, 1, 12), tmp_path / "pack")
    assert b"lstm" not in whole.files["program.json"]
    backend = whole.load()
    for rows in (1, 5, 64):
        (x,) = whole.inputs(rows)
        with torch.no_grad():
            expected = module(torch.from_numpy(x)).numpy()
        assert distance(expected, backend.forward([x], rows)[0]) <= 1e-5


def test_running_out_of_memory_is_told_from_other_failures(
    whole: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for torch modules."""
    backend = whole.load()
    assert backend._plan is not None  # type: ignore[attr-defined]

    def fail(message: str) -> Callable[..., Any]:
        def forward(inputs: Any) -> Any:
            raise RuntimeError(message)

        return forward

    x = np.zeros((1, 64), np.float32)
    monkeypatch.setattr(backend._plan, "run", fail("DefaultCPUAllocator: not enough memory"))  # type: ignore[attr-defined]
    with pytest.raises(MeshError, match="MEMORY_EXHAUSTED"):
        backend.forward([x], 1)
    monkeypatch.setattr(backend._plan, "run", fail("mat1 and mat2"))  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="mat1"):
        backend.forward([x], 1)
