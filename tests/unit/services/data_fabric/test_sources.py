"""Sources: identity by content, drift refused, a file that changes while it is read fails."""

import os
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.data_fabric import sources as sources_module
from services.data_fabric.refusal import SourceRefused
from services.data_fabric.sources import Source, SourceReader, stats


def write(path: Path, **columns: pa.Array) -> None:
    """A Parquet file with these columns."""
    pq.write_table(pa.table(columns), path)


def identify(folder: Path, pattern: str = "*.parquet") -> Source:
    """The source of a folder, by a fresh reader."""
    return SourceReader().identify("s", folder, pattern)


def read(source: Source, *columns: str) -> pa.Table:
    """Every row of a source."""
    return pa.Table.from_batches(SourceReader().stream(source, columns).arrow)


def test_identity_is_content(tmp_path: Path) -> None:
    """A copy has the same digest; another value, order or count of files another one."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    write(tmp_path / "a/1.parquet", x=pa.array([1]))
    write(tmp_path / "a/2.parquet", x=pa.array([2]))
    for name in ("1", "2"):
        (tmp_path / f"b/{name}.parquet").write_bytes((tmp_path / f"a/{name}.parquet").read_bytes())
    first = identify(tmp_path / "a")
    assert first.digest == identify(tmp_path / "b").digest
    assert first.rows == 2
    assert identify(tmp_path / "a", "1.parquet").digest != first.digest
    (tmp_path / "b/2.parquet").replace(tmp_path / "b/0.parquet")
    assert identify(tmp_path / "b").digest != first.digest


def test_columns_come_in_the_asked_order_and_type(tmp_path: Path) -> None:
    """Narrow integers and single floats are widened, NaN becomes null, other columns stay out."""
    write(
        tmp_path / "1.parquet",
        i=pa.array([1, None], pa.int16()),
        x=pa.array([float("nan"), 0.5], pa.float32()),
        t=pa.array([0, 1], pa.timestamp("ms", "Asia/Tokyo")),
        rest=pa.array([Decimal("1.5")] * 2),
    )
    table = read(identify(tmp_path), "t", "x", "i")
    assert table.schema.names == ["t", "x", "i"]
    assert table["x"].to_pylist() == [None, 0.5]
    assert table["i"].type == pa.int64()
    assert table["t"].type == pa.timestamp("us", tz="UTC")


def test_the_newest_instant_is_known(tmp_path: Path) -> None:
    """From the file's own statistics."""
    write(tmp_path / "1.parquet", t=pa.array([5, 9, 7], pa.timestamp("us", "UTC")))
    newest = identify(tmp_path).files[0].newest
    assert newest is not None
    assert newest.isoformat() == "1970-01-01T00:00:00.000009+00:00"


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (pa.array([1.5]), pa.array([1]), "x is int64 in 2.parquet, but float64 in 1.parquet"),
        (pa.array([1]), pa.array(["1"]), "x is string in 2.parquet, but int64"),
        (pa.array([1]), pa.array([datetime(2024, 1, 1)]), "2.parquet: x: .* no time zone"),
        (pa.array([datetime(2024, 1, 1)]), pa.array([1]), "1.parquet: x: .* no time zone"),
        (pa.array([Decimal("1.50")]), pa.array([Decimal("1.5")]), "not a type that views read"),
        (pa.array([1], pa.uint64()), pa.array([1], pa.uint64()), "not a type that views read"),
        (pa.array([1], pa.timestamp("ns", "UTC")), pa.array([1]), "finer than a microsecond"),
        (pa.array(["a"]).dictionary_encode(), pa.array(["a"]), "not a type that views read"),
    ],
)
def test_a_drifted_schema_is_refused(
    tmp_path: Path, first: pa.Array, second: pa.Array, reason: str
) -> None:
    """The file and both types are named, before the engine sees a row."""
    write(tmp_path / "1.parquet", x=first)
    write(tmp_path / "2.parquet", x=second)
    with pytest.raises(SourceRefused, match=reason):
        read(identify(tmp_path), "x")


def test_a_missing_column_or_file_is_refused(tmp_path: Path) -> None:
    """Also a file that is no Parquet."""
    with pytest.raises(SourceRefused, match="no file matches"):
        identify(tmp_path)
    write(tmp_path / "1.parquet", x=pa.array([1]))
    write(tmp_path / "2.parquet", y=pa.array([1]))
    with pytest.raises(SourceRefused, match=r"2\.parquet has no column x"):
        read(identify(tmp_path), "x")
    (tmp_path / "3.parquet").write_text("no parquet")
    with pytest.raises(SourceRefused, match=r"3\.parquet"):
        identify(tmp_path)


def test_a_file_replaced_before_the_read_fails_it(tmp_path: Path) -> None:
    """What was identified is what is read."""
    write(tmp_path / "1.parquet", x=pa.array([1]))
    source = identify(tmp_path)
    write(tmp_path / "new", x=pa.array([2]))
    (tmp_path / "new").replace(tmp_path / "1.parquet")
    with pytest.raises(SourceRefused, match="changed while it was read"):
        read(source, "x")


def test_a_file_overwritten_during_the_read_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place, with the same size and the old times put back: only the content tells."""
    monkeypatch.setattr(sources_module, "batch_rows", 10)
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"x": range(100)}), path, row_group_size=10, compression="none")
    pq.write_table(
        pa.table({"x": range(100, 200)}), tmp_path / "o", row_group_size=10, compression="none"
    )
    other = (tmp_path / "o").read_bytes()
    assert len(other) == path.stat().st_size
    source = identify(tmp_path, "1.parquet")
    assert source.files[0].is_racy
    monkeypatch.setattr(SourceReader, "_stat", lambda self, descriptor: (source.files[0].key, True))
    stream = SourceReader().stream(source, ["x"])
    stream.arrow.read_next_batch()
    with path.open("r+b") as file:
        file.write(other)
    with pytest.raises(SourceRefused, match="changed while it was read"):
        stream.arrow.read_all()
    assert isinstance(stream.error, SourceRefused)


def test_a_quiet_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest is remembered for as long as the file looks the same."""
    path = tmp_path / "1.parquet"
    write(path, x=pa.array([1]))
    monkeypatch.setattr(sources_module, "racy_s", -1.0)
    reader = SourceReader()
    digest = reader.identify("s", tmp_path, "*.parquet").digest
    monkeypatch.setattr(os, "pread", lambda *arguments: pytest.fail("read again"))
    assert reader.identify("s", tmp_path, "*.parquet").digest == digest


def test_looks_tell_a_change(tmp_path: Path) -> None:
    """Another file, another size or another time."""
    write(tmp_path / "1.parquet", x=pa.array([1]))
    before = stats(tmp_path, "*.parquet")
    assert stats(tmp_path, "*.parquet") == before
    write(tmp_path / "2.parquet", x=pa.array([1]))
    assert stats(tmp_path, "*.parquet") != before
