"""`model.toml`: how a model is trained and what its contract says. Typed; an unknown key is
refused.
"""

import datetime
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from contracts.errors import MeshError
from contracts.pack import Action
from contracts.types import Label, Name, Strict

Positive = Annotated[int, Meta(ge=1)]


class ViewTable(Strict, frozen=True, kw_only=True):
    """`[view]`: the features. Every field but the `unused` ones is an input; `categories` get a
    learned row per value, all others are numbers."""

    name: Name
    categories: list[str]
    unused: list[str] = msgspec.field(default_factory=list)


class LabelTable(Strict, frozen=True, kw_only=True):
    """`[label]`: rows of `source` with `column` > `above` are `then`, others `otherwise`; a null
    has no label and is left out."""

    source: Name
    column: str
    above: float
    then: Label
    otherwise: Label


class SplitTable(Strict, frozen=True, kw_only=True):
    """`[split]`: event times before `train_until` train, before `validate_until` choose the
    epoch, the rest is reported."""

    train_until: datetime.datetime
    validate_until: datetime.datetime


class NetworkTable(Strict, frozen=True, kw_only=True):
    """`[network]`: see `architectures.Tabular`."""

    widths: list[Positive]
    clip: Annotated[float, Meta(gt=0.0)]


class TrainingTable(Strict, frozen=True, kw_only=True):
    """`[training]`."""

    seed: Annotated[int, Meta(ge=0)]
    epochs: Annotated[int, Meta(ge=1, le=1_000)]
    batch_rows: Positive
    learning_rate: Annotated[float, Meta(gt=0.0)]
    weight_decay: Annotated[float, Meta(ge=0.0)]
    dropout: Annotated[float, Meta(ge=0.0, lt=1.0)]


class ModelConfig(Strict, frozen=True, kw_only=True):
    """The champion's file."""

    name: Name
    task: Literal["classifier"]
    architecture: Literal["tabular"]
    labels: Annotated[list[Label], Meta(min_length=2, max_length=2)]
    description: str
    view: ViewTable
    label: LabelTable
    split: SplitTable
    network: NetworkTable
    training: TrainingTable
    actions: list[Action]


class SmallConfig(Strict, frozen=True, kw_only=True):
    """The distilled model's file: what differs from the champion."""

    name: Name
    description: str
    network: NetworkTable
    training: TrainingTable


ConfigT = TypeVar("ConfigT", ModelConfig, SmallConfig)


def read_config(path: Path) -> ModelConfig:
    """The champion's configuration. Raises MeshError INVALID_REQUEST naming file and key."""
    config = _read(path, ModelConfig)
    if {config.label.then, config.label.otherwise} != set(config.labels):
        raise MeshError("INVALID_REQUEST", f"{path.name}: [label] gives other labels than `labels`")
    return config


def read_small(path: Path) -> SmallConfig:
    """The distilled model's configuration. Raises MeshError INVALID_REQUEST."""
    return _read(path, SmallConfig)


def _read(path: Path, type_: type[ConfigT]) -> ConfigT:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=type_)
    except (OSError, msgspec.MsgspecError) as error:
        raise MeshError("INVALID_REQUEST", f"{path.name}: {error}") from error
