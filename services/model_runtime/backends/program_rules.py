"""What a program must satisfy before any of it is resolved or run. Pure: no torch.

Whatever breaks a rule raises MeshError PACK_INVALID: what, which limit, what was received, remedy.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from contracts.errors import MeshError
from contracts.pack import Manifest, TensorContract
from contracts.program import (
    PROGRAM,
    PROGRAM_FORMAT,
    Argument,
    Atom,
    Named,
    Program,
    ProgramInput,
    ProgramNode,
    program_bytes_max,
)
from contracts.types import Scalar
from services.model_runtime.backends.operators import (
    ABSENT_IS_PINNED,
    ARITHMETIC,
    KEYWORDS_LEFT_OUT,
    MEASURES,
    PINNED,
    REFUSED_WORDS,
    is_allowed,
)

DATATYPES = frozenset(
    {"BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "FP16", "BF16", "FP32", "FP64"}
)
"""Those that torch computes with."""
NUMBERS: Mapping[str, float] = {
    "inf": float("inf"),
    "-inf": float("-inf"),
    "nan": float("nan"),
}
MEMORY_FORMATS = frozenset({"contiguous", "channels_last", "preserve"})
_AGAIN = "make the pack again: mortise pack"
_decode = msgspec.json.Decoder(Program).decode


class _Head(msgspec.Struct):
    format: int


_decode_head = msgspec.json.Decoder(_Head).decode


def read_program(
    files: Mapping[str, bytes], manifest: Manifest, inputs: Sequence[TensorContract]
) -> Program:
    """The program of a pack, checked. `inputs`: what the network gets (`encoding.input_shapes`).

    Raises MeshError PACK_INVALID.
    """
    content = files.get(PROGRAM)
    if content is None:
        raise invalid(f"the pack has no {PROGRAM}; {_AGAIN}")
    program = _parse(content)
    fault = (
        _interface_fault(program, manifest, inputs)
        or _weights_fault(program, manifest)
        or _values_fault(program)
    )
    if fault:
        raise invalid(fault)
    return program


def describe(node: ProgramNode, place: int) -> str:
    """A node as errors name it."""
    first = node.output if isinstance(node.output, str) else ", ".join(node.output[:2])
    return f"node {place} ({node.operator[:80]} → {first[:80]})"


def invalid(reason: str) -> MeshError:
    """The error of a program that breaks a rule."""
    return MeshError("PACK_INVALID", f"{PROGRAM}: {reason}")


def _parse(content: bytes) -> Program:
    if len(content) > program_bytes_max:
        raise invalid(f"{len(content)} bytes, program_bytes_max is {program_bytes_max}")
    try:
        found = _decode_head(content).format
        if found != PROGRAM_FORMAT:
            raise invalid(
                f"format {found}, this runtime reads format {PROGRAM_FORMAT};"
                f" update Mortise, or {_AGAIN}"
            )
        return _decode(content)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise invalid(f"{str(error)[:300]}; {_AGAIN}") from error


def _interface_fault(
    program: Program, manifest: Manifest, inputs: Sequence[TensorContract]
) -> str | None:
    expected = [(tensor.datatype, tensor.shape) for tensor in inputs]
    found = [(tensor.datatype, tensor.shape) for tensor in program.inputs]
    if found != expected:
        return f"its inputs are {_shown(program.inputs)}, the model's are {_shown(inputs)}"
    outputs = len(manifest.contract.outputs)
    if len(program.outputs) != outputs:
        return f"{len(program.outputs)} outputs, the model's contract has {outputs}"
    return None


def _weights_fault(program: Program, manifest: Manifest) -> str | None:
    """Every tensor of the pack is one weight of the program, with its datatype and shape."""
    packed = {tensor.name: tensor for tensor in manifest.tensors}
    used: set[str] = set()
    for weight in program.weights:
        what = f"weight {weight.tensor[:80]!r}"
        tensor = packed.get(weight.tensor)
        if weight.tensor in used:
            return f"{what} is used twice; {_AGAIN}"
        used.add(weight.tensor)
        if tensor is None:
            return f"{what} is missing from the pack; {_AGAIN}"
        if weight.datatype not in DATATYPES:
            return f"{what}: {weight.datatype} is none of {', '.join(sorted(DATATYPES))}"
        if (tensor.datatype, tensor.shape) != (weight.datatype, weight.shape):
            return (
                f"{what}: the program expects {weight.datatype} {weight.shape},"
                f" the pack has {tensor.datatype} {tensor.shape}; {_AGAIN}"
            )
    extra = sorted(packed.keys() - used)
    return f"tensor {extra[0][:80]!r} of the pack is no weight of it; {_AGAIN}" if extra else None


def _values_fault(program: Program) -> str | None:
    """Every value is given once, before it is used, by an allowed call."""
    given: dict[str, bool] = {}  # name → it is a size, not a tensor
    names = [value.name for value in program.inputs] + [value.name for value in program.weights]
    for name in names:
        if name in given:
            return f"value {name[:80]!r} is given twice"
        given[name] = False
    for place, node in enumerate(program.nodes):
        fault = _call_fault(node, given)
        if fault:
            return f"{describe(node, place)}: {fault}"
        is_size = node.operator in ARITHMETIC or node.operator in MEASURES
        if not node.output:
            return f"{describe(node, place)}: gives no value"
        if is_size and not isinstance(node.output, str):
            return f"{describe(node, place)}: gives one number, not a list"
        for name in [node.output] if isinstance(node.output, str) else node.output:
            if name in given:
                return f"{describe(node, place)}: value {name[:80]!r} is given twice"
            if name:
                given[name] = is_size
    for name in program.outputs:
        if given.get(name, True):
            return f"output {name[:80]!r} is no tensor of the program"
    return None


def _call_fault(node: ProgramNode, given: Mapping[str, bool]) -> str | None:
    if not is_allowed(node.operator):
        return (
            "its operator is not in the allow-list; write the model with other operators, or as a"
            " backend of its own (docs/backends.md)"
        )
    for keyword in node.keywords:
        if keyword in KEYWORDS_LEFT_OUT:
            return f"keyword {keyword[:80]!r} is the backend's to choose; leave it out"
    atoms = list(_atoms([*node.arguments, *node.keywords.values()]))
    for atom in atoms:
        fault = _named_fault(atom, given) if isinstance(atom, Named) else None
        if fault:
            return fault
    if node.operator in ARITHMETIC:
        return _numbers_fault(node, given)
    if node.operator in MEASURES:
        return _measure_fault(node, given)
    word = REFUSED_WORDS.get(node.operator)
    if word in atoms and word is not None:
        return f"{word!r} is not allowed: of whole numbers it can end the process; trunc(a / b)"
    return _pinned_fault(node)


def _named_fault(atom: Named, given: Mapping[str, bool]) -> str | None:
    known: Iterable[str]
    if atom.kind == "value":
        if atom.name not in given:
            return f"value {atom.name[:80]!r} is not given before it"
        return None
    known = {"datatype": DATATYPES, "number": NUMBERS, "memory_format": MEMORY_FORMATS}[atom.kind]
    if atom.name not in known:
        return f"{atom.kind} {atom.name[:80]!r} is none of {', '.join(sorted(known))}"
    return None


def _numbers_fault(node: ProgramNode, given: Mapping[str, bool]) -> str | None:
    if node.keywords:
        return "arithmetic of sizes takes no keyword"
    for argument in node.arguments:
        is_size = isinstance(argument, Named) and argument.kind == "value" and given[argument.name]
        if not is_size and type(argument) not in (int, float):
            return f"arithmetic of sizes takes numbers, received {str(argument)[:80]}"
    return None


def _measure_fault(node: ProgramNode, given: Mapping[str, bool]) -> str | None:
    tensor, *axis = node.arguments or [None]
    is_tensor = isinstance(tensor, Named) and tensor.kind == "value" and not given[tensor.name]
    wanted = 1 if node.operator == "size.of" else 0
    if not is_tensor or node.keywords or [type(one) for one in axis] != [int] * wanted:
        return f"takes a tensor and {wanted} whole numbers"
    return None


def _pinned_fault(node: ProgramNode) -> str | None:
    pinned = PINNED.get(node.operator)
    if pinned is None:
        return None
    place, name, value = pinned
    found: Argument | Scalar = None
    if place < len(node.arguments):
        found = node.arguments[place]
    elif name in node.keywords or node.operator not in ABSENT_IS_PINNED:
        found = node.keywords.get(name)
    else:
        found = value
    if type(found) is not type(value) or found != value:
        return (
            f"{name} is {str(found)[:80]}, only {value} is allowed: export the model in eval mode"
        )
    return None


def _atoms(arguments: Iterable[Argument]) -> Iterable[Atom]:
    for argument in arguments:
        if isinstance(argument, list):
            yield from argument
        else:
            yield argument


def _shown(tensors: Sequence[TensorContract | ProgramInput]) -> str:
    return ", ".join(f"{one.datatype} {one.shape}" for one in tensors)[:300] or "none"
