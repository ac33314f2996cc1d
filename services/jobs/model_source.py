"""A model from a Python file of its owner: `FILE.py:FUNCTION`.

The function returns `(module, example)` or an exported program (`torch.export`). `example`: one
tensor, a sequence of them, or a map from input name to tensor, in the order of `forward`'s
parameters; their first axis is the rows. The file is run: it is its owner's own code, like a
training script, and nothing of it goes into the pack.
"""

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contracts.errors import MeshError

_MODULE = "mortise_model"
example_rows_min = 3
"""Rows that a model is traced with: with one, tracing would take the 1 for a constant."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What the function returned. `names` of the inputs; `class_name` of the module."""

    model: torch.nn.Module | torch.export.ExportedProgram
    example: list[Tensor]
    names: list[str]
    class_name: str


def read_source(path: Path, function: str) -> ModelSource:
    """Run the file and call the function; what it prints goes to standard error.

    Raises MeshError INVALID_REQUEST with the line that failed, or what was expected instead.
    """
    if not path.is_file():
        raise MeshError("INVALID_REQUEST", f"source {path.name}: no such file")
    with contextlib.redirect_stdout(sys.stderr):
        try:
            found = _call(path, function)
        except Exception as error:
            raise MeshError("INVALID_REQUEST", _reason(path, error)) from error
    if isinstance(found, torch.export.ExportedProgram):
        return _from_program(found, path, function)
    match found:
        case (torch.nn.Module() as module, example):
            return _from_module(module, example, path, function)
    raise _unexpected(path, function, f"received {type(found).__name__}")


def _call(path: Path, function: str) -> Any:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    spec.loader.exec_module(module)
    return getattr(module, function)()


def _reason(path: Path, error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [str(frame.lineno) for frame in frames if frame.filename == str(path)]
    where = f" line {lines[-1]}" if lines else ""
    return f"source {path.name}{where}: {type(error).__name__}: {str(error)[:300]}"


def _from_program(program: torch.export.ExportedProgram, path: Path, function: str) -> ModelSource:
    arguments, keywords = program.example_inputs or ((), {})
    if keywords or not all(isinstance(one, Tensor) for one in arguments) or not arguments:
        raise _unexpected(path, function, "the program has other than positional tensor inputs")
    return ModelSource(
        model=program,
        example=[_rows(one) for one in arguments],
        names=list(program.graph_signature.user_inputs),
        class_name="Program",
    )


def _from_module(module: torch.nn.Module, example: Any, path: Path, function: str) -> ModelSource:
    parameters = list(inspect.signature(module.forward).parameters)
    names, tensors = parameters, example
    if isinstance(example, Tensor):
        tensors = [example]
    elif isinstance(example, Mapping):
        names, tensors = [str(name) for name in example], list(example.values())
        if names != parameters[: len(names)]:
            raise _unexpected(
                path, function, f"example has {names}, forward takes {parameters} in this order"
            )
    is_right = isinstance(tensors, Sequence) and all(
        isinstance(one, Tensor) and one.ndim >= 1 and len(one) for one in tensors
    )
    if not is_right or not tensors or len(tensors) > len(names):
        raise _unexpected(path, function, f"example is {type(example).__name__}")
    return ModelSource(
        model=module.eval(),
        example=[_rows(one) for one in tensors],
        names=names[: len(tensors)],
        class_name=type(module).__name__,
    )


def _rows(tensor: Tensor) -> Tensor:
    """At least `example_rows_min` rows: the given ones again and again."""
    times = -(-example_rows_min // len(tensor))
    return torch.cat([tensor.detach()] * times) if times > 1 else tensor.detach()


def _unexpected(path: Path, function: str, received: str) -> MeshError:
    return MeshError(
        "INVALID_REQUEST",
        f"{path.name}:{function} returns (torch.nn.Module, example tensors with rows first), or an"
        f" exported program; {received}",
    )
