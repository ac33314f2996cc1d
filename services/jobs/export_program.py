"""From a `torch.nn.Module`, or a `torch.export` program, to a graph as data and its weights.

What torch.export guards (ranges and shapes) is stated by the model's contract instead and checked
by the runtime; a program that needs more than the allow-list of operators is refused with each
operator that it would call.
"""

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export.graph_signature import InputKind, OutputKind

from contracts.errors import MeshError
from contracts.inference import Datatype
from contracts.program import (
    Argument,
    Atom,
    Named,
    Program,
    ProgramInput,
    ProgramNode,
    ProgramWeight,
)
from services.model_runtime.backends.operators import KEYWORDS_LEFT_OUT, is_allowed
from services.model_runtime.backends.torch_memory import TORCH_TYPES
from services.model_runtime.mapping import Array

DATATYPES: dict[torch.dtype, Datatype] = {
    torch_type: name  # type: ignore[misc]  # the table's keys are datatypes
    for name, torch_type in TORCH_TYPES.items()
}
_ASSERTIONS = (
    "aten._assert_tensor_metadata",
    "aten._assert_scalar",
    "aten._assert_async",
    "aten.sym_constrain_range",
    "aten.sym_constrain_range_for_size",
)
_MEASURES = {"aten.sym_size.int": "size.of", "aten.sym_numel.default": "size.count"}
_ARITHMETIC: dict[Any, str] = {
    operator.add: "size.add",
    operator.sub: "size.subtract",
    operator.mul: "size.multiply",
    operator.floordiv: "size.divide_floor",
    operator.truediv: "size.divide",
    operator.mod: "size.remainder",
    operator.neg: "size.negate",
    torch.sym_min: "size.minimum",
    torch.sym_max: "size.maximum",
    torch.sym_float: "size.number",
    torch.sym_int: "size.whole",
    torch.sym_sqrt: "size.root",
}
_MEMORY_FORMATS = {
    torch.contiguous_format: "contiguous",
    torch.channels_last: "channels_last",
    torch.preserve_format: "preserve",
}
_shown_max = 8


@dataclass(frozen=True, slots=True)
class Exported:
    """A graph and its weights; those named in `bfloat16` as their bits in UINT16. `run` computes
    what the graph should: inputs → outputs."""

    program: Program
    tensors: dict[str, Array]
    bfloat16: frozenset[str]
    form: str
    run: Callable[..., Any]


def export(
    model: torch.nn.Module | torch.export.ExportedProgram,
    example: Sequence[Tensor],
    rows_max: int,
    tokens_max: int = 0,
) -> Exported:
    """Trace `model` with these inputs, whose first axis is the rows, for 1 … `rows_max` of them;
    where `tokens_max` is not 0, the second axis are 1 … `tokens_max` tokens.

    Raises MeshError PACK_INVALID naming what cannot be exported and what to do.
    """
    exported = model if isinstance(model, torch.export.ExportedProgram) else None
    if exported is None:
        exported = _trace(model, example, rows_max, tokens_max)
    else:
        _check_rows(exported, rows_max)
    form, exported = _choose_form(exported)
    writer = _Writer(exported)
    program = writer.program()
    arrays, bits = pack_arrays(writer.tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = exported.module()
    return Exported(program, arrays, bits, form, run)


def _trace(
    model: Any, example: Sequence[Tensor], rows_max: int, tokens_max: int
) -> torch.export.ExportedProgram:
    axes = {0: torch.export.Dim("rows", min=1, max=rows_max)}
    if tokens_max:
        axes[1] = torch.export.Dim("tokens", min=1, max=tokens_max)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(
                model.eval(),
                tuple(example),
                dynamic_shapes=tuple(axes for _ in example),
            )
    except Exception as error:
        reason = " ".join(str(error).split())[:600]
        raise MeshError(
            "PACK_INVALID",
            f"torch.export cannot trace the model for 1 … {rows_max} rows:"
            f" {type(error).__name__}: {reason}",
        ) from error


def _check_rows(exported: torch.export.ExportedProgram, rows_max: int) -> None:
    """An export that was made elsewhere must take every number of rows."""
    sizes = [
        node.meta["val"].shape[0]
        for node in exported.graph.nodes
        if node.op == "placeholder" and node.name in exported.graph_signature.user_inputs
    ]
    for size in sizes:
        bounds = None if isinstance(size, int) else exported.range_constraints.get(size.node.expr)
        if bounds is None:
            raise MeshError(
                "PACK_INVALID",
                f"the exported program takes exactly {size} rows; export it with dynamic_shapes"
                f' {{0: torch.export.Dim("rows", min=1, max={rows_max})}} for each input',
            )
        lower, upper = int(bounds.lower), bounds.upper
        if lower > 2 or (upper.is_finite and int(upper) < rows_max):
            raise MeshError(
                "PACK_INVALID",
                f"the exported program takes {lower} … {upper} rows, the contract asks for"
                f" 1 … {rows_max}: change rows_max, or export it with that range",
            )


def _choose_form(
    exported: torch.export.ExportedProgram,
) -> tuple[str, torch.export.ExportedProgram]:
    """The first form that needs allowed operators only: as exported (the module's own calls, hence
    its own bits), without writes in place, or decomposed into core operators."""
    forms: dict[str, Callable[[], torch.export.ExportedProgram]] = {
        "as exported": lambda: exported,
        "functional": lambda: exported.run_decompositions({}),
        "core operators": exported.run_decompositions,
    }
    missing: list[str] = []
    for form, make in forms.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            candidate = make()
        found = _outside(candidate)
        if not found:
            return form, candidate
        missing = missing or found
    listed = ", ".join(missing[:_shown_max])
    raise MeshError(
        "PACK_INVALID",
        f"operators outside the allow-list: {listed}; write the model with others, or as a backend"
        f" of its own (docs/backends.md)",
    )


def _outside(exported: torch.export.ExportedProgram) -> list[str]:
    found: dict[str, None] = {}
    for node in exported.graph.nodes:
        if node.op == "get_attr":
            found[f"submodule {node.target}"] = None
        elif node.op == "call_function" and node.target is not operator.getitem:
            name = _operator_name(node.target)
            if name and not is_allowed(name):
                found[name] = None
    return list(found)


def _operator_name(target: Any) -> str:
    """As a program spells it; "" for an assertion."""
    name = str(target) if isinstance(target, torch._ops.OpOverload) else ""
    if name.rpartition(".")[0] in _ASSERTIONS:
        return ""
    if name:
        return _MEASURES.get(name, name)
    return _ARITHMETIC.get(target) or str(getattr(target, "__name__", target))


class _Writer:
    """Walks a graph once. `tensors`: what its weights are, by the pack's names."""

    def __init__(self, exported: torch.export.ExportedProgram) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._exported = exported
        self._inputs: list[ProgramInput] = []
        self._weights: list[ProgramWeight] = []
        self._nodes: list[ProgramNode] = []
        self._names: dict[Any, str] = {}
        self._storage: dict[Any, str] = {}
        self._needed = _needed(exported)

    def program(self) -> Program:
        """The graph as data."""
        self._check_outputs()
        specs = {spec.arg.name: spec for spec in self._exported.graph_signature.input_specs}
        outputs: list[str] = []
        for node in self._exported.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, specs[node.name])
            elif node.op == "output":
                outputs = [self._output(value) for value in node.args[0]]
            elif node in self._needed and node.target is not operator.getitem:
                self._call(node)
        return Program(
            format=1,
            torch=str(torch.__version__),
            inputs=self._inputs,
            weights=self._weights,
            nodes=self._nodes,
            outputs=outputs,
        )

    def _check_outputs(self) -> None:
        for spec in self._exported.graph_signature.output_specs:
            if spec.kind is not OutputKind.USER_OUTPUT:
                raise _invalid(
                    f"the model changes its own state ({spec.kind.name} {spec.target}); every"
                    f" request must leave it as it was"
                )

    def _placeholder(self, node: Any, spec: Any) -> None:
        if spec.kind is InputKind.USER_INPUT:
            value = node.meta["val"]
            if not isinstance(value, Tensor):
                raise _invalid(f"input {node.name} is {type(value).__name__}, not a tensor")
            shape = [-1, *(size if isinstance(size, int) else -1 for size in value.shape[1:])]
            datatype = DATATYPES[value.dtype]
            self._inputs.append(ProgramInput(name=node.name, datatype=datatype, shape=shape))
        elif node not in self._needed:
            return
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            self._weight(node, spec.target)
        else:
            raise _invalid(f"{node.name} is a {spec.kind.name}, only tensors can be packed")
        self._names.setdefault(node, node.name)

    def _weight(self, node: Any, target: str) -> None:
        """One of the pack's tensors; tied weights are packed once."""
        exported = self._exported
        held = exported.state_dict if target in exported.state_dict else exported.constants
        tensor = held[target].detach()
        if tensor.dtype not in DATATYPES or tensor.layout is not torch.strided:
            raise _invalid(f"weight {target} is {tensor.dtype}, {tensor.layout}: not supported")
        identity = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        known = self._storage.get(identity) if tensor.numel() else None
        if known is not None:
            self._names[node] = known
            return
        self._storage[identity] = node.name
        self.tensors[target] = tensor
        self._weights.append(
            ProgramWeight(
                name=node.name,
                tensor=target,
                datatype=DATATYPES[tensor.dtype],
                shape=list(tensor.shape),
            )
        )

    def _call(self, node: Any) -> None:
        for keyword in node.kwargs.keys() & KEYWORDS_LEFT_OUT:
            self._check_place(node, keyword)
        output: str | list[str] = node.name
        parts = node.meta.get("val")
        if isinstance(parts, tuple | list):
            output = [""] * len(parts)
            for user in node.users:
                if user.target is not operator.getitem:
                    raise _invalid(f"{node.name}: its values are not taken apart one by one")
                place = user.args[1]
                output[place] = self._names[user] = output[place] or user.name
        self._nodes.append(
            ProgramNode(
                operator=_operator_name(node.target),
                arguments=[self._argument(argument) for argument in node.args],
                keywords={
                    keyword: self._argument(argument)
                    for keyword, argument in node.kwargs.items()
                    if keyword not in KEYWORDS_LEFT_OUT
                },
                output=output,
            )
        )
        self._names[node] = node.name

    def _check_place(self, node: Any, keyword: str) -> None:
        value = node.kwargs[keyword]
        fits: dict[str, tuple[Any, ...]] = {
            "device": (None, torch.device("cpu")),
            "layout": (None, torch.strided),
        }
        if value not in fits.get(keyword, (None, False)):
            raise _invalid(f"{node.name}: {keyword} is {value}; export the model on the CPU")

    def _argument(self, argument: Any) -> Argument:
        if isinstance(argument, list | tuple):
            return [self._atom(atom) for atom in argument]
        return self._atom(argument)

    def _atom(self, atom: Any) -> Atom:
        if isinstance(atom, torch.fx.Node):
            return Named(kind="value", name=self._names[atom])
        if isinstance(atom, torch.dtype) and atom in DATATYPES:
            return Named(kind="datatype", name=DATATYPES[atom])
        if isinstance(atom, torch.memory_format):
            return Named(kind="memory_format", name=_MEMORY_FORMATS[atom])
        if isinstance(atom, float) and not np.isfinite(atom):
            return Named(kind="number", name=str(float(atom)))
        if atom is None or isinstance(atom, bool | int | float | str):
            return atom
        raise _invalid(f"an argument of type {type(atom).__name__} cannot be packed: {atom!r:.80}")

    def _output(self, value: Any) -> str:
        if not isinstance(value, torch.fx.Node) or not isinstance(value.meta["val"], Tensor):
            raise _invalid(f"an output is {type(value).__name__}, only tensors can be answered")
        return self._names[value]


def _needed(exported: torch.export.ExportedProgram) -> set[Any]:
    """Nodes that an output depends on; assertions are none."""
    needed: set[Any] = set()
    waiting = [node for node in exported.graph.nodes if node.op == "output"]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return needed


def pack_arrays(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Array], frozenset[str]]:
    """Tensors as a pack's arrays, and which of them are the bits of BF16."""
    bits = frozenset(name for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16)
    arrays = {
        name: (tensor.contiguous().view(torch.uint16) if name in bits else tensor).cpu().numpy()
        for name, tensor in tensors.items()
    }
    return arrays, bits


def _invalid(reason: str) -> MeshError:
    return MeshError("PACK_INVALID", reason)
