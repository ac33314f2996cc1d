"""`model.toml` of `mortise pack`: what a model is called, takes and gives, and where it comes from.
Typed; an unknown key is refused.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from contracts.errors import MeshError
from contracts.inference import Datatype
from contracts.pack import Action, Task, TensorContract, TokenContract
from contracts.types import UNSET, Label, Name, Scalar, Strict, UnsetType

PROGRAM_ARCHITECTURE = "program"
Source = Annotated[str, Meta(pattern=r"^[^:]+\.py:[A-Za-z_][A-Za-z0-9_]*$")]


class TensorTable(Strict, frozen=True, kw_only=True):
    """`[inputs]` and `[outputs]`, by name; −1 in `shape` is the row axis and stands first."""

    datatype: Datatype
    shape: list[Annotated[int, Meta(ge=-1)]]


class PackConfig(Strict, frozen=True, kw_only=True):
    """The file. `architecture = "program"`: `source` is `FILE.py:FUNCTION`, which returns a
    torch.nn.Module with example inputs, or an exported program; inputs and outputs are read from
    it, and named here where its own names do not fit. Another architecture is one of the
    allow-list with its `configuration`, or belongs to `backend`; its tensors are those of
    `weights`, a safetensors file. `files` go into the pack as they are. Paths are relative to the
    file."""

    name: Name
    task: Task = "tensor"
    architecture: Name = PROGRAM_ARCHITECTURE
    backend: Name | UnsetType = UNSET
    source: Source | UnsetType = UNSET
    weights: str | UnsetType = UNSET
    files: list[str] = msgspec.field(default_factory=list)
    configuration: dict[str, Scalar | list[int]] = msgspec.field(default_factory=dict)
    inputs: dict[Name, TensorTable] = msgspec.field(default_factory=dict)
    outputs: dict[Name, TensorTable] = msgspec.field(default_factory=dict)
    output_names: list[Name] = msgspec.field(default_factory=list)
    labels: list[Label] = msgspec.field(default_factory=list)
    actions: list[Action] = msgspec.field(default_factory=list)
    tokens: TokenContract | UnsetType = UNSET
    rows_max: Annotated[int, Meta(ge=1, le=65_536)] = 4096
    p99_ms: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    description: str = ""
    hyperparameters: dict[str, Scalar] = msgspec.field(default_factory=dict)

    @property
    def is_program(self) -> bool:
        """Whether the model is exported from Python."""
        return self.architecture == PROGRAM_ARCHITECTURE


_TABLES: dict[str, type[msgspec.Struct]] = {
    "": PackConfig, "inputs": TensorTable, "outputs": TensorTable, "tokens": TokenContract,
    "actions": Action,
}  # fmt: skip
"""By their place in the file."""


def read_pack_config(path: Path) -> PackConfig:
    """The file's content. Raises MeshError INVALID_REQUEST naming file, key and remedy."""
    try:
        config = msgspec.toml.decode(path.read_bytes(), type=PackConfig)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else _with_known(str(error))
        raise MeshError("INVALID_REQUEST", f"{path.name}: {reason}") from error
    fault = _fault(config)
    if fault:
        raise MeshError("INVALID_REQUEST", f"{path.name}: {fault}")
    return config


def _with_known(reason: str) -> str:
    """An unknown key's message with the keys that are known there."""
    if "unknown field" not in reason:
        return reason
    _, _, place = reason.partition(" - at `$.")
    table = _TABLES.get(place.partition("[")[0].rstrip("`"))
    if table is None:
        return reason
    return f"{reason}; the keys here: {', '.join(table.__struct_fields__)}"


def contracts_of(tables: dict[Name, TensorTable]) -> list[TensorContract]:
    """The tables as a model contract has them."""
    return [
        TensorContract(name=name, datatype=table.datatype, shape=table.shape)
        for name, table in tables.items()
    ]


def _fault(config: PackConfig) -> str | None:
    if config.is_program:
        if config.source is UNSET:
            return 'a program needs source = "FILE.py:FUNCTION"'
        if config.weights is not UNSET or config.configuration or config.backend is not UNSET:
            return "weights, configuration and backend are for other architectures than program"
        return None
    if config.source is not UNSET:
        return f'source is for architecture = "{PROGRAM_ARCHITECTURE}" only'
    if not config.inputs or not config.outputs:
        return "[inputs] and [outputs] are needed for another architecture than program"
    return None
