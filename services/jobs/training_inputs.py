"""What a training run reads: the view's features over every row of the labelled source, through
the data fabric's offline path, and the digests that say which content and which code that was.
"""

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from contracts.errors import MeshError
from contracts.features import Dtype
from services.data_fabric.engine import EngineFailed
from services.data_fabric.offline import features
from services.data_fabric.refusal import SourceRefused, ViewRefused
from services.data_fabric.sources import SourceReader
from services.data_fabric.sql import parse
from services.jobs.training_config import ModelConfig
from services.model_runtime.preprocess import field_types
from shared.home import Home

_REPOSITORY = Path(__file__).parents[2]
_CODE = (
    "services/jobs/dataset.py",
    "services/jobs/fit.py",
    "services/jobs/training.py",
    "services/jobs/training_config.py",
    "services/jobs/training_inputs.py",
    "services/model_runtime/backends/architectures.py",
    "services/model_runtime/encoding.py",
    "services/model_runtime/probabilities.py",
)
"""What decides the numbers of a pack, besides the packages below."""
_PACKAGES = ("duckdb", "numpy", "pyarrow", "torch")


@dataclass(frozen=True, slots=True)
class Inputs:
    """n rows: `features` has the view's `fields`, `event_time` and `outcome` the same rows.
    `sources` is the digest over the sources' content, `feature_code` the view's."""

    view_sql: str
    view_version: str
    fields: Mapping[str, Dtype]
    features: pa.Table
    event_time: pa.ChunkedArray
    outcome: pa.ChunkedArray
    sources: str
    feature_code: str


def read_inputs(folder: Path, config: ModelConfig) -> Inputs:
    """Compute the features of every row of the labelled source of the home in `folder`.

    Raises MeshError INVALID_REQUEST when the home lacks a source or the source a column, or when
    the data fabric refuses the view or a source.
    """
    try:
        return _read(Home(folder), config)
    except (ViewRefused, SourceRefused, EngineFailed) as error:
        raise MeshError("INVALID_REQUEST", str(error)) from error


def _read(home: Home, config: ModelConfig) -> Inputs:
    tables = home.config().sources
    if config.label.source not in tables:
        raise MeshError("INVALID_REQUEST", f"the home has no source {config.label.source}")
    patterns = {name: home.path / table.path for name, table in tables.items()}
    view_sql = (home.path / "features" / f"{config.view.name}.sql").read_text()
    view = parse(view_sql)
    labelled = patterns[config.label.source]
    rows = pa.concat_tables(
        pq.read_table(path) for path in sorted(labelled.parent.glob(labelled.name))
    )
    for column in (config.label.column, view.header.event_time):
        if column not in rows.column_names:
            raise MeshError("INVALID_REQUEST", f"{config.label.source} has no column {column}")
    return Inputs(
        view_sql=view_sql,
        view_version=view.header.version,
        fields=field_types(view_sql),
        features=features(view_sql, patterns, rows),
        event_time=rows[view.header.event_time],
        outcome=rows[config.label.column],
        sources=_sources_digest({name: patterns[name] for name in view.sources}),
        feature_code=view.feature_code,
    )


def code_digest() -> str:
    """The digest of the training code: name and content of each file that decides a number."""
    digest = hashlib.sha256()
    for name in _CODE:
        content = (_REPOSITORY / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return "sha256:" + digest.hexdigest()


def packages() -> dict[str, str]:
    """The versions that decide a number."""
    return {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES}


def _sources_digest(patterns: Mapping[str, Path]) -> str:
    reader = SourceReader()
    digest = hashlib.sha256()
    for name, pattern in sorted(patterns.items()):
        source = reader.identify(name, pattern.parent, pattern.name)
        digest.update(f"{name} {source.digest}\n".encode())
    return "sha256:" + digest.hexdigest()
