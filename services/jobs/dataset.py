"""Arrow features and labels → arrays to train on, and the encoders that made them.

The encoders are fitted on the training rows alone; the encoding is the runtime's own code.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contracts.errors import MeshError
from contracts.features import Dtype
from contracts.pack import ColumnEncoder
from services.jobs.training_config import LabelTable, SplitTable, ViewTable
from services.model_runtime.encoding import Column, Encoding
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


def make_dataset(
    features: pa.Table,
    outcome: pa.ChunkedArray,
    event_time: pa.ChunkedArray,
    *,
    fields: Mapping[str, Dtype],
    labels: Sequence[str],
    view: ViewTable,
    label: LabelTable,
    split: SplitTable,
) -> Dataset:
    """`features` has the view's `fields`; `outcome` (numbers) and `event_time` (instants) belong
    to the same rows. Raises MeshError INVALID_REQUEST when a part of the split is empty."""
    known = pc.is_valid(outcome)
    excluded = len(outcome) - pc.sum(known).as_py()
    features, outcome = features.filter(known), outcome.filter(known)
    parts = _split(event_time.filter(known), split)
    names = [name for name in fields if name not in view.unused]
    columns = {name: to_column(features[name], fields[name]) for name in names}
    encoders = tuple(
        _fit(name, columns[name], parts[0], is_category=name in view.categories) for name in names
    )
    numbers, categories = Encoding(encoders, fields).encode(columns, len(outcome))
    is_then = outcome.to_numpy() > label.above
    then, otherwise = labels.index(label.then), labels.index(label.otherwise)
    return Dataset(
        numbers=numbers,
        categories=categories,
        labels=np.where(is_then, then, otherwise),
        train=parts[0],
        validate=parts[1],
        report=parts[2],
        encoders=encoders,
        excluded=excluded,
    )


def to_column(values: pa.ChunkedArray, dtype: Dtype) -> Column:
    """An Arrow column as the encoders take it."""
    present = None if values.null_count == 0 else pc.is_valid(values).to_numpy()
    if dtype == "string":
        return Column(values.to_pylist(), present)
    return Column(values.fill_null(False if dtype == "bool" else 0).to_numpy(), present)


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


def _fit(name: str, column: Column, train: Array, *, is_category: bool) -> ColumnEncoder:
    used = train if column.present is None else train & column.present
    if is_category:
        values = np.asarray(column.values)[used]
        return ColumnEncoder(
            field=name, kind="category", values=[str(value) for value in np.unique(values)]
        )
    numbers = np.asarray(column.values)[used].astype(np.float64)
    null_share = 1 - len(numbers) / train.sum()
    return ColumnEncoder(
        field=name,
        kind="standard",
        mean=float(numbers.mean()) if len(numbers) else 0.0,
        deviation=(float(numbers.std()) if len(numbers) else 0.0) or 1.0,
        null_flag=bool(null_share > null_flag_share_min),
    )
