"""Arrow features and labels → arrays to train on, and the encoders that made them.

The encoders are fitted on the training rows alone; the encoding is the runtime's own code.
"""

import datetime
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.errors import MeshError
from contracts.pack import ColumnEncoder
from services.jobs.training_config import ModelConfig, SplitTable
from services.jobs.training_inputs import Inputs
from services.model_runtime.encoding import Columns, Encoding
from services.model_runtime.mapping import Array

null_flag_share_min = 0.01
"""A number that is null in a larger share of the training rows gets an input that says so."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """n labelled rows. numbers FP32 [n, D], categories INT64 [n, K], labels INT64 [n] (an index
    into the contract's labels); `train`, `validate`, `report`: booleans [n], a partition.
    `excluded`: rows without a label, left out."""

    numbers: Array
    categories: Array
    labels: Array
    train: Array
    validate: Array
    report: Array
    encoders: tuple[ColumnEncoder, ...]
    excluded: int

    def __len__(self) -> int:
        return len(self.labels)


def make_dataset(inputs: Inputs, config: ModelConfig) -> Dataset:
    """The labelled rows, encoded. Raises MeshError INVALID_REQUEST when a part of the split is
    empty."""
    known = pc.is_valid(inputs.outcome)
    features, outcome = inputs.features.filter(known), inputs.outcome.filter(known)
    train, validate, report = _split(inputs.event_time.filter(known), config.split)
    encoders = tuple(
        _fit(name, features[name], train, is_category=name in config.view.categories)
        for name in inputs.fields
        if name not in config.view.unused
    )
    encoding = Encoding(encoders, inputs.fields)
    numbers, categories = encoding.encode(to_columns(features, encoding), len(outcome))
    is_then = outcome.to_numpy() > config.label.above
    then = config.labels.index(config.label.then)
    otherwise = config.labels.index(config.label.otherwise)
    return Dataset(
        numbers=numbers,
        categories=categories,
        labels=np.where(is_then, then, otherwise),
        train=train,
        validate=validate,
        report=report,
        encoders=encoders,
        excluded=len(inputs.outcome) - len(outcome),
    )


def to_columns(features: pa.Table, encoding: Encoding) -> Columns:
    """Arrow features as the encoders take them."""
    numeric = [features[name] for name in encoding.numeric]
    present = np.stack([pc.is_valid(column).to_numpy() for column in numeric])
    return Columns(
        numbers=np.stack([_floats(column) for column in numeric]),
        present=None if present.all() else present,
        texts=[features[name].to_pylist() for name in encoding.texts],
    )


def _floats(column: pa.ChunkedArray) -> Array:
    """FP64, with 0 for a null."""
    floats: Array = column.cast(pa.float64()).fill_null(0.0).to_numpy()
    return floats


def _split(event_time: pa.ChunkedArray, split: SplitTable) -> tuple[Array, Array, Array]:
    at_us = event_time.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    train_us, validate_us = (
        round(until.astimezone(datetime.UTC).timestamp() * 1e6)
        for until in (split.train_until, split.validate_until)
    )
    train = at_us < train_us
    report = at_us >= validate_us
    validate = ~train & ~report
    for name, part in (("train", train), ("validate", validate), ("report", report)):
        if not part.any():
            raise MeshError("INVALID_REQUEST", f"[split] leaves no row to {name}")
    return train, validate, report


def _fit(name: str, column: pa.ChunkedArray, train: Array, *, is_category: bool) -> ColumnEncoder:
    """The encoder of one field, from the training rows where it has a value."""
    used = column.filter(pa.array(train)).drop_null()
    if is_category:
        values = sorted(used.unique().to_pylist())
        return ColumnEncoder(field=name, kind="category", values=[str(value) for value in values])
    numbers = _floats(used)
    return ColumnEncoder(
        field=name,
        kind="standard",
        mean=float(numbers.mean()) if len(numbers) else 0.0,
        deviation=(float(numbers.std()) if len(numbers) else 0.0) or 1.0,
        null_flag=bool(1 - len(numbers) / train.sum() > null_flag_share_min),
    )
