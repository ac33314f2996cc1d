"""`program.json`: an exported program's graph as data. Its weights are the pack's tensors.

A list of calls in the order in which they run, each of an operator that the runtime's allow-list
has (`services/model_runtime/backends/operators.py`); no code, no expression to be evaluated. Sizes
that depend on the number of rows are computed by calls as well (`size.of`, `size.multiply`, …).
"""

from typing import Annotated, Literal

from msgspec import Meta

from contracts.inference import Datatype
from contracts.types import Strict

PROGRAM = "program.json"
PROGRAM_FORMAT = 1
PROGRAM_BACKEND = "program"
"""The `backend` of a manifest whose pack holds a program."""
program_bytes_max = 16 * 1024 * 1024
nodes_max = 65_536
arguments_max = 64
list_arguments_max = 4_096

ValueName = Annotated[str, Meta(min_length=1, max_length=256)]
"""A value of the graph; each name is given once."""
Size = Annotated[int, Meta(ge=-1, le=2**31 - 1)]


class Named(Strict, frozen=True, kw_only=True):
    """An argument that plain JSON has no form for: an earlier `value`; a `datatype`; a `number`
    (inf, -inf, nan); a `memory_format` (contiguous, channels_last, preserve)."""

    kind: Literal["value", "datatype", "number", "memory_format"]
    name: ValueName


Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Text = Annotated[str, Meta(max_length=256)]
Atom = None | bool | Whole | float | Text | Named
Argument = (
    None
    | bool
    | Whole
    | float
    | Text
    | Named
    | Annotated[list[Atom], Meta(max_length=list_arguments_max)]
)


class ProgramInput(Strict, frozen=True, kw_only=True):
    """An input, in the contract's order; −1 in `shape` is the row axis and stands first."""

    name: ValueName
    datatype: Datatype
    shape: list[Size]


class ProgramWeight(Strict, frozen=True, kw_only=True):
    """The pack's `tensor` as the value `name`; every tensor of the pack is one."""

    name: ValueName
    tensor: str
    datatype: Datatype
    shape: list[Size]


class ProgramNode(Strict, frozen=True, kw_only=True):
    """One call. `output`: the value's name; a list where the operator returns several values,
    "" for one that nothing uses."""

    operator: Annotated[str, Meta(max_length=128)]
    arguments: Annotated[list[Argument], Meta(max_length=arguments_max)] = []
    keywords: Annotated[dict[str, Argument], Meta(max_length=arguments_max)] = {}
    output: ValueName | Annotated[list[str], Meta(max_length=list_arguments_max)]


class Program(Strict, frozen=True, kw_only=True):
    """The graph. `torch` is the version that exported it; `outputs` are values in the contract's
    order."""

    format: Literal[1]
    torch: str
    inputs: list[ProgramInput]
    weights: list[ProgramWeight]
    nodes: Annotated[list[ProgramNode], Meta(max_length=nodes_max)]
    outputs: list[ValueName]
