"""Parquet sources: which files, with which columns, with which content, and reading exactly that.

A file's identity is the sha256 of its content, cached by (device, inode, size, mtime, ctime).
Its schema is checked before the engine sees a byte: engines read an int file beside a double one,
or a naive timestamp, without a word. A file that changes while it is read fails the read.
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from contracts.features import Dtype
from services.data_fabric.config import (
    batch_rows,
    hash_chunk_bytes,
    racy_s,
    read_buffer_bytes,
    source_files_max,
    source_rows_max,
)
from services.data_fabric.refusal import SourceRefused
from shared.clock import SYSTEM, Clock

StatKey = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file as it was identified. `types` maps every column to its dtype, or to the reason why
    it cannot be read; `newest` is the latest instant that the file's own statistics name."""

    path: Path
    key: StatKey
    digest: str
    bytes: int
    rows: int
    types: Mapping[str, str]
    newest: datetime | None
    is_racy: bool


@dataclass(frozen=True, slots=True)
class Source:
    """A named set of files in name order; `digest` is over their digests in that order."""

    name: str
    files: tuple[SourceFile, ...]
    digest: str

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    def columns(self) -> dict[str, Dtype]:
        """The columns that can be read, by the first file."""
        types = self.files[0].types
        return {name: dtype for name, dtype in types.items() if dtype in ARROW_TYPES}  # type: ignore[misc]


ARROW_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
"""The Arrow type of each dtype."""


def dtype_of(arrow: pa.DataType) -> str:
    """The dtype in which a column is read without loss, or the reason why there is none."""
    if pa.types.is_boolean(arrow):
        return "bool"
    if pa.types.is_integer(arrow) and not pa.types.is_uint64(arrow):
        return "int64"
    if pa.types.is_float64(arrow) or pa.types.is_float32(arrow):
        return "float64"
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        return "string"
    if pa.types.is_timestamp(arrow):
        if arrow.tz is None:
            return f"{arrow} has no time zone: an instant without one depends on the host"
        if arrow.unit == "ns":
            return f"{arrow} is finer than a microsecond"
        return "timestamp"
    return f"{arrow} is not a type that views read"


def _newest(parquet: pq.ParquetFile, types: Mapping[str, str]) -> datetime | None:
    found = []
    for group in range(parquet.metadata.num_row_groups):
        row_group = parquet.metadata.row_group(group)
        for at in range(row_group.num_columns):
            column = row_group.column(at)
            if types.get(column.path_in_schema) == "timestamp" and column.is_stats_set:
                found.append(column.statistics.max)
    return max((at for at in found if isinstance(at, datetime)), default=None)


def stats(root: Path, pattern: str) -> list[tuple[Path, StatKey]]:
    """The files that match a pattern below `root`, as the file system shows them, in name order."""
    found = []
    for path in sorted(root.glob(pattern)):
        with contextlib.suppress(FileNotFoundError):
            found.append((path, _key(path.stat())))
    return found


def _key(found: os.stat_result) -> StatKey:
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class SourceReader:
    """Identifies and reads sources. One per process; any thread may call it."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._digests: dict[StatKey, str] = {}

    def identify(self, name: str, root: Path, pattern: str) -> Source:
        """The source whose files match `pattern` below `root` now. Raises SourceRefused."""
        paths = sorted(root.glob(pattern))
        if not paths:
            raise SourceRefused(f"{name}: no file matches {pattern}")
        if len(paths) > source_files_max:
            raise SourceRefused(
                f"{name}: {len(paths)} files, source_files_max is {source_files_max}"
            )
        files = tuple(self._identify_file(name, path) for path in paths)
        digest = hashlib.sha256("\n".join(file.digest for file in files).encode()).hexdigest()
        source = Source(name=name, files=files, digest=f"sha256:{digest}")
        if source.rows > source_rows_max:
            raise SourceRefused(f"{name}: {source.rows} rows, source_rows_max is {source_rows_max}")
        return source

    def _identify_file(self, name: str, path: Path) -> SourceFile:
        try:
            with path.open("rb") as stream:
                key, is_racy = self._stat(stream.fileno())
                digest = self._digest(stream.fileno(), key, is_racy=is_racy)
                parquet = pq.ParquetFile(stream)
                schema = parquet.schema_arrow
                types = {field.name: dtype_of(field.type) for field in schema}
                if len(types) != len(schema):
                    raise SourceRefused(f"{name}: {path.name} names a column twice")
                rows, newest = parquet.metadata.num_rows, _newest(parquet, types)
        except (OSError, pa.ArrowException) as error:
            raise SourceRefused(f"{name}: {path.name}: {error}") from error
        return SourceFile(path, key, digest, key[2], rows, types, newest, is_racy)

    def _stat(self, descriptor: int) -> tuple[StatKey, bool]:
        found = os.fstat(descriptor)
        age_s = self._clock.wall() - max(found.st_mtime, found.st_ctime)
        return _key(found), age_s < racy_s

    def _digest(self, descriptor: int, key: StatKey, *, is_racy: bool) -> str:
        with self._lock:
            cached = self._digests.get(key)
        if cached is not None and not is_racy:
            return cached
        hasher, offset = hashlib.sha256(), 0
        while chunk := os.pread(descriptor, hash_chunk_bytes, offset):
            hasher.update(chunk)
            offset += len(chunk)
        digest = f"sha256:{hasher.hexdigest()}"
        with self._lock:
            if len(self._digests) >= 2 * source_files_max:
                self._digests.clear()
            self._digests[key] = digest
        return digest

    def check_columns(self, source: Source, columns: Sequence[str]) -> dict[str, Dtype]:
        """The dtypes of `columns`, the same in every file. Raises SourceRefused naming the file
        that has drifted."""
        first = source.files[0]
        for file in source.files:
            for column in columns:
                found = file.types.get(column)
                if found is None:
                    raise SourceRefused(f"{source.name}: {file.path.name} has no column {column}")
                if found not in ARROW_TYPES:
                    raise SourceRefused(f"{source.name}: {file.path.name}: {column}: {found}")
                if found != first.types[column]:
                    raise SourceRefused(
                        f"{source.name}: {column} is {found} in {file.path.name}, but "
                        f"{first.types[column]} in {first.path.name}"
                    )
        readable = source.columns()
        return {column: readable[column] for column in columns}

    def stream(self, source: Source, columns: Sequence[str]) -> "SourceStream":
        """The named columns of every file in order, cast to their dtypes. Raises SourceRefused."""
        types = self.check_columns(source, columns)
        schema = pa.schema([(column, ARROW_TYPES[types[column]]) for column in columns])
        return SourceStream(self, source, schema)

    def read(self, source: Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Batches in order. Raises SourceRefused when a file is no longer the identified one."""
        for file in source.files:
            try:
                with file.path.open("rb") as opened:
                    self._check_unchanged(source, file, opened.fileno(), is_end=False)
                    parquet = pq.ParquetFile(
                        opened, pre_buffer=False, buffer_size=read_buffer_bytes
                    )
                    for batch in parquet.iter_batches(
                        batch_rows, columns=schema.names, use_threads=False
                    ):
                        yield _clean(batch.select(schema.names).cast(schema))
                    self._check_unchanged(source, file, opened.fileno(), is_end=True)
            except (OSError, pa.ArrowException) as error:
                raise SourceRefused(f"{source.name}: {file.path.name}: {error}") from error

    def _check_unchanged(
        self, source: Source, file: SourceFile, descriptor: int, *, is_end: bool
    ) -> None:
        key, _ = self._stat(descriptor)
        is_same = key == file.key
        if is_same and is_end and file.is_racy:
            is_same = self._digest(descriptor, key, is_racy=True) == file.digest
        if not is_same:
            raise SourceRefused(f"{source.name}: {file.path.name} changed while it was read")


class SourceStream:
    """A source as one Arrow stream. Who reads it through foreign code finds in `error` why it
    broke off."""

    def __init__(self, reader: SourceReader, source: Source, schema: pa.Schema) -> None:
        self.error: SourceRefused | None = None
        self.arrow = pa.RecordBatchReader.from_batches(
            schema, self._watched(reader.read(source, schema))
        )

    def _watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except SourceRefused as error:
            self.error = error
            raise


def _clean(batch: pa.RecordBatch) -> pa.RecordBatch:
    """NaN becomes null: engines sort and compare it differently, so it never reaches SQL."""
    for at, field in enumerate(batch.schema):
        if pa.types.is_floating(field.type):
            values = batch.column(at).to_numpy(zero_copy_only=False)  # a null reads as NaN
            is_missing = np.isnan(values)
            if int(is_missing.sum()) > batch.column(at).null_count:
                column = pa.array(values, field.type, mask=is_missing)
                batch = batch.set_column(at, field, column)
    return batch
