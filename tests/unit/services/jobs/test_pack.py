"""`mortise pack`'s job: from a model.toml to a pack that was tried, or a reason."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from contracts.errors import MeshError
from services.jobs.bench_packs import tiny
from services.jobs.model_source import example_rows_min, read_source
from services.jobs.pack import main, make
from services.jobs.pack_config import read_pack_config
from services.jobs.progress import run
from shared.packs import pack_path, verify
from tests.unit.services.model_runtime.backends.exported import pinned

MODEL = """
import torch
from torch import nn

print("a line on standard output")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return {"y": self.layer(x)}

class Mixing(nn.Module):
    def forward(self, x):
        return x - x.mean(0)

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return x + self.seen

class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)

def build():
    return Net(), {"x": torch.ones(1, 4)}

def program():
    rows = torch.export.Dim("rows", min=1, max=4096)
    x = torch.ones(3, 4)
    return torch.export.export(Net().eval(), (x,), dynamic_shapes=({0: rows},))

def fixed():
    return torch.export.export(Net().eval(), (torch.ones(3, 4),))

def mixing():
    return Mixing(), torch.ones(3, 4)

def counting():
    return Counting(), torch.ones(3, 4)

def noisy():
    return Noisy(), torch.ones(3, 4)

def nothing():
    return Net()

def misnamed():
    return Net(), {"z": torch.ones(3, 4)}

def broken():
    return 1 / 0
"""


@pytest.fixture(autouse=True)
def numerics() -> Iterator[None]:
    """Put back what the job pins."""
    with pinned():
        yield
    sys.modules.pop("mortise_model", None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def model_toml(folder: Path, function: str, more: str = "") -> Path:
    """Its file."""
    file = folder / "model.toml"
    file.write_text(f'name = "net"\nsource = "model.py:{function}"\n{more}')
    return file


def job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object
) -> list[dict[str, Any]]:
    """The job as a program runs it; its lines."""
    monkeypatch.setattr(sys, "argv", ["pack", *map(str, arguments)])
    with contextlib.suppress(SystemExit):  # code 1, which the tests of progress prove
        run(main)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_module_becomes_a_staged_pack_that_was_tried(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Progress, checks, the digest last; the same again gives the same digest; --check agrees."""
    (folder / "mortise.toml").write_text("home_version = 1\n")
    file = model_toml(folder, "build")
    said = job(monkeypatch, capsys, file, "--home", folder)
    steps = [line["step"] for line in said]
    assert steps[:3] == ["source", "export", "graph"]
    assert {"check: rows are alone", "check: reference", "check: largest batch"} <= {*steps}
    assert steps[-1] == "staged"
    digest = said[-1]["digest"]
    manifest = verify(pack_path(folder / "models", digest), digest)
    assert (manifest.backend, manifest.architecture.name) == ("program", "Net")
    assert [(one.name, one.shape) for one in manifest.contract.inputs] == [("x", [-1, 4])]
    assert [(one.name, one.shape) for one in manifest.contract.outputs] == [("y", [-1, 2])]
    again = job(monkeypatch, capsys, file, "--out", folder / "again")
    assert again[-1]["digest"] == digest
    checked = job(monkeypatch, capsys, folder / "again", "--check")
    assert (checked[-1]["step"], checked[-1]["digest"]) == ("checked", digest)
    refused = job(monkeypatch, capsys, file, "--out", folder / "again")
    assert "it exists; name a new folder" in refused[-1]["error"]


def test_an_exported_program_is_the_same_graph(folder: Path) -> None:
    """Exported by the author or by us."""
    ours, _ = make(model_toml(folder, "build"))
    theirs, _ = make(model_toml(folder, "program", 'output_names = ["y"]\n'))
    assert (
        json.loads(ours.files["program.json"])["nodes"]
        == (json.loads(theirs.files["program.json"])["nodes"])
    )


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("mixing", "check 'rows are alone': output of a row alone and in a batch of 7 differ by"),
        ("counting", "the model changes its own state (BUFFER_MUTATION seen); every request must"),
        ("noisy", "operators outside the allow-list: aten.rand_like.default; write the model with"),
        (
            "fixed",
            'takes exactly 3 rows; export it with dynamic_shapes {0: torch.export.Dim("rows"',
        ),
        ("nothing", "returns (torch.nn.Module, example tensors with rows first), or an exported"),
        ("misnamed", "example has ['z'], forward takes ['x'] in this order"),
        ("broken", "source model.py line 60: ZeroDivisionError: division by zero"),
        ("absent", "AttributeError: module 'mortise_model' has no attribute 'absent'"),
    ],
)
def test_a_model_that_cannot_be_packed_is_refused_with_the_reason(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    function: str,
    reason: str,
) -> None:
    """One line: the name of the error, what is wrong, what to do; nothing is written."""
    last = job(monkeypatch, capsys, model_toml(folder, function), "--out", folder / "p")[-1]
    assert last["step"] == "failed"
    assert reason in last["error"]
    assert not (folder / "p").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('name = "m"\nsourc = "x"', "unknown field `sourc`; the keys here: name, task, "),
        (
            'name = "m"\n[tokens]\nvocab = 3',
            "`vocab` - at `$.tokens`; the keys here: vocabulary, row_tokens_max, pad_id, pad_side",
        ),
        (
            'name = "m"\n[inputs.x]\ndatatype = "FP32"\nshape = [-1]\nsize = 3',
            "; the keys here: datatype, shape",
        ),
        ('name = "m"', 'a program needs source = "FILE.py:FUNCTION"'),
        ('name = "m"\nsource = "model.py"', "matching regex"),
        (
            'name = "m"\nsource = "m.py:f"\nweights = "w"',
            "are for other architectures than program",
        ),
        ('name = "m"\narchitecture = "mlp"', "[inputs] and [outputs] are needed"),
        ('name = "m"\narchitecture = "mlp"\nsource = "m.py:f"', "source is for architecture"),
        ("name = ", "model.toml: "),
    ],
)
def test_a_file_that_says_the_wrong_thing_is_refused(folder: Path, text: str, reason: str) -> None:
    """INVALID_REQUEST with the file, the key and what fits."""
    file = folder / "model.toml"
    file.write_text(text)
    with pytest.raises(MeshError, match=r"INVALID_REQUEST: model\.toml: ") as caught:
        read_pack_config(file)
    assert reason in caught.value.message


def test_names_and_shapes_of_the_file_must_be_the_models(folder: Path) -> None:
    """Other names are taken, other tensors refused."""
    named = '[inputs]\nhome = { datatype = "FP32", shape = [-1, 4] }\n'
    draft, _ = make(model_toml(folder, "build", named))
    assert draft.contract.inputs[0].name == "home"
    with pytest.raises(MeshError, match=r"\[inputs\] differs from the model's own: x FP32"):
        make(model_toml(folder, "build", named.replace("4", "5")))
    with pytest.raises(MeshError, match="output_names has 2, the model gives 1"):
        make(model_toml(folder, "build", 'output_names = ["a", "b"]\n'))


def test_few_example_rows_are_repeated(folder: Path) -> None:
    """One row would be taken for a constant."""
    source = read_source(folder / "model.py", "build")
    assert [list(one.shape) for one in source.example] == [[example_rows_min, 4]]
    assert source.names == ["x"]


def test_another_architecture_is_packed_from_its_weights(folder: Path) -> None:
    """`tiny` from a safetensors file is `tiny`."""
    draft = tiny()
    safetensors.numpy.save_file(dict(draft.tensors), folder / "w.safetensors")
    file = folder / "model.toml"
    file.write_text(
        'name = "tiny"\narchitecture = "mlp"\nweights = "w.safetensors"\n'
        "configuration = { widths = [64, 32, 2] }\n"
        '[inputs]\nx = { datatype = "FP32", shape = [-1, 64] }\n'
        '[outputs]\ny = { datatype = "FP32", shape = [-1, 2] }\n'
    )
    made, _ = make(file)
    assert (made.backend, made.architecture) == ("torch", draft.architecture)
    for name, array in draft.tensors.items():
        np.testing.assert_array_equal(made.tensors[name], array)
    (folder / "w.safetensors").write_bytes(b"nothing")
    with pytest.raises(MeshError, match=r"INVALID_REQUEST: model\.toml: "):
        make(file)
