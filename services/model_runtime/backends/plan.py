"""A program as steps that run one after another over a list of values.

An interpreter: the functions are looked up once, in the allow-list; arguments are filled in by
position. Nothing is compiled, evaluated or imported.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from contracts.program import Argument, Named, Program, ProgramNode
from services.model_runtime.backends.operators import resolve
from services.model_runtime.backends.program_rules import NUMBERS, describe, invalid
from services.model_runtime.backends.torch_memory import TORCH_TYPES

value_mib_max = 1_024
"""Of one value while a program is tried: a graph that grows beyond it is refused."""
_MEMORY_FORMATS: Mapping[str, torch.memory_format] = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "preserve": torch.preserve_format,
}


@dataclass(frozen=True, slots=True)
class _Step:
    """One call. `arguments` and `keywords` hold what is fixed; the rest is filled in from values:
    (place, slot), (keyword, slot), and of lists (the list's place or keyword, [(index, slot)]).
    `targets`: one slot, or as many as the result has parts (−1: nothing uses it). `last` are the
    slots that nothing reads afterwards."""

    function: Callable[..., Any]
    arguments: list[Any]
    keywords: dict[str, Any]
    fills: list[tuple[int, int]]
    keyword_fills: list[tuple[str, int]]
    list_fills: list[tuple[int | str, list[tuple[int, int]]]]
    target: int
    targets: list[int]
    last: list[int]

    def call(self, values: list[Any]) -> Any:
        """The function's result from these values."""
        arguments = self.arguments
        if self.fills or self.list_fills:
            arguments = arguments.copy()
            for place, slot in self.fills:
                arguments[place] = values[slot]
        keywords = self.keywords
        if self.keyword_fills or self.list_fills:
            keywords = keywords.copy()
            for keyword, slot in self.keyword_fills:
                keywords[keyword] = values[slot]
        for where, places in self.list_fills:
            holder: Any = arguments if isinstance(where, int) else keywords
            filled = holder[where] = holder[where].copy()
            for index, slot in places:
                filled[index] = values[slot]
        return self.function(*arguments, **keywords)

    def keep(self, result: Any, values: list[Any]) -> None:
        """Put the result where later steps find it."""
        if self.targets:
            if not isinstance(result, list | tuple) or len(result) != len(self.targets):
                count = len(result) if isinstance(result, list | tuple) else 1
                raise ValueError(f"gives {count} values, {len(self.targets)} are expected")
            for slot, part in zip(self.targets, result, strict=True):
                if slot >= 0:
                    values[slot] = part
        elif isinstance(result, list | tuple):
            raise ValueError(f"gives {len(result)} values, one is expected")
        else:
            values[self.target] = result
        for slot in self.last:
            values[slot] = None


class Plan:
    """A checked program over its weights. One thread at a time runs it."""

    def __init__(self, program: Program, weights: Mapping[str, Tensor]) -> None:
        """`weights`: by the pack's tensor names. Raises MeshError PACK_INVALID for an operator
        that the installed torch lacks."""
        names = [value.name for value in program.inputs]
        names += [value.name for value in program.weights]
        slots = {name: slot for slot, name in enumerate(names)}
        self._program = program
        self._inputs = len(program.inputs)
        self._values: list[Any] = [None] * self._inputs
        self._values += [weights[weight.tensor] for weight in program.weights]
        self._steps = [_step(node, place, slots) for place, node in enumerate(program.nodes)]
        self._outputs = [slots[name] for name in program.outputs]
        self._values += [None] * (len(slots) - len(self._values))
        kept = {*range(self._inputs + len(program.weights)), *self._outputs}
        _free_early(self._steps, kept)

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs; they may be views of inputs or weights. Whatever an operator raises passes
        through."""
        values = self._values.copy()
        values[: self._inputs] = inputs
        for step in self._steps:
            step.keep(step.call(values), values)
        return [values[slot] for slot in self._outputs]

    def try_out(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """`run`, watched: MeshError PACK_INVALID names the node that fails or grows too large."""
        values = self._values.copy()
        values[: self._inputs] = inputs
        for place, step in enumerate(self._steps):
            try:
                result = step.call(values)
                for value in result if isinstance(result, list | tuple) else [result]:
                    _check_size(value)
                step.keep(result, values)
            except Exception as error:
                what = describe(self._program.nodes[place], place)
                reason = str(error).strip().split("\n")[0][:200]
                rows = len(inputs[0])
                raise invalid(
                    f"{what} fails for {rows} rows: {type(error).__name__}: {reason}; make the pack"
                    f" again: mortise pack"
                ) from error
        return [values[slot] for slot in self._outputs]


def _check_size(value: object) -> None:
    if isinstance(value, Tensor):
        mib = value.numel() * value.element_size() / 2**20
        if mib > value_mib_max:
            raise ValueError(f"a value of {mib:.0f} MiB, value_mib_max is {value_mib_max}")


def _step(node: ProgramNode, place: int, slots: dict[str, int]) -> _Step:
    """The node as a step; its outputs get the next slots."""
    try:
        function = resolve(node.operator)
    except LookupError as error:
        raise invalid(
            f"{describe(node, place)}: {error}; install the torch it was made with"
        ) from (error)
    list_fills: list[tuple[int | str, list[tuple[int, int]]]] = []
    fills: list[tuple[int, int]] = []
    keyword_fills: list[tuple[str, int]] = []
    for index, argument in enumerate(node.arguments):
        if isinstance(argument, list):
            if places := _places(argument, slots):
                list_fills.append((index, places))
        elif isinstance(argument, Named) and argument.kind == "value":
            fills.append((index, slots[argument.name]))
    for keyword, argument in node.keywords.items():
        if isinstance(argument, list):
            if places := _places(argument, slots):
                list_fills.append((keyword, places))
        elif isinstance(argument, Named) and argument.kind == "value":
            keyword_fills.append((keyword, slots[argument.name]))
    target, targets = -1, []
    if isinstance(node.output, str):
        target = slots.setdefault(node.output, len(slots))
    else:
        targets = [slots.setdefault(name, len(slots)) if name else -1 for name in node.output]
    return _Step(
        function=function,
        arguments=[_fixed(argument) for argument in node.arguments],
        keywords={keyword: _fixed(argument) for keyword, argument in node.keywords.items()},
        fills=fills,
        keyword_fills=keyword_fills,
        list_fills=list_fills,
        target=target,
        targets=targets,
        last=[],
    )


def _places(atoms: Sequence[Any], slots: Mapping[str, int]) -> list[tuple[int, int]]:
    return [
        (index, slots[atom.name])
        for index, atom in enumerate(atoms)
        if isinstance(atom, Named) and atom.kind == "value"
    ]


def _fixed(argument: Argument) -> Any:
    """The argument as torch takes it; a value's place stays empty."""
    if isinstance(argument, list):
        return [_fixed(atom) for atom in argument]
    if not isinstance(argument, Named):
        return argument
    if argument.kind == "datatype":
        return TORCH_TYPES[argument.name]
    if argument.kind == "memory_format":
        return _MEMORY_FORMATS[argument.name]
    return NUMBERS[argument.name] if argument.kind == "number" else None


def _free_early(steps: Sequence[_Step], kept: set[int]) -> None:
    """Values are let go after their last use, so that a forward holds few at a time."""
    seen = set(kept)
    for step in reversed(steps):
        read = [slot for _, slot in (*step.fills, *step.keyword_fills)]
        read += [slot for _, places in step.list_fills for _, slot in places]
        given = [step.target] if not step.targets else step.targets
        for slot in [*read, *given]:
            if slot >= 0 and slot not in seen:
                seen.add(slot)
                step.last.append(slot)
