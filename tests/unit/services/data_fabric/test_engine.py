"""The engine is locked, bounded in time and memory, and tells what it refused."""

from pathlib import Path

import pyarrow as pa
import pytest

from services.data_fabric import engine as engine_module
from services.data_fabric.engine import Engine, EngineFailed


@pytest.fixture
def engine() -> Engine:
    """An engine of its own."""
    return Engine(timeout_s=0.2)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_csv('{path}')",
        "SELECT * FROM '{path}'",
        "SELECT * FROM read_text('{path}')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM local_table",
        "SELECT getenv('HOME')",
    ],
)
def test_no_query_reaches_outside(engine: Engine, tmp_path: Path, statement: str) -> None:
    """Neither files nor the caller's variables nor the environment."""
    local_table = pa.table({"a": [1]})
    path = tmp_path / "secret.csv"
    path.write_text("a\n1\n")
    with pytest.raises(EngineFailed):
        engine.query(statement.format(path=path))
    assert len(local_table) == 1


@pytest.mark.parametrize(
    "statement",
    ["SET threads = 8", "SET TimeZone = 'Asia/Tokyo'", "COPY (SELECT 1) TO '{path}'",
     "ATTACH '{path}'", "INSTALL httpfs", "LOAD httpfs", "SET enable_external_access = true"],
)  # fmt: skip
def test_no_statement_changes_the_engine(engine: Engine, tmp_path: Path, statement: str) -> None:
    """The configuration is locked, the disk out of reach."""
    with pytest.raises(EngineFailed):
        engine.create_table_as("t", f"SELECT 1; {statement.format(path=tmp_path / 'out')}")
    assert not list(tmp_path.iterdir())


def test_a_statement_that_takes_too_long_is_interrupted(engine: Engine) -> None:
    """And the connection answers the next one."""
    with pytest.raises(EngineFailed, match="longer than") as failed:
        engine.query("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b")
    assert failed.value.kind == "time"
    assert engine.query("SELECT 1 AS a").to_pylist() == [{"a": 1}]


def test_a_statement_that_needs_too_much_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit is named and nothing is spilled to the disk."""
    monkeypatch.setattr(engine_module, "engine_memory_mib", 32)
    with pytest.raises(EngineFailed, match="engine_memory_mib is 32") as failed:
        Engine().query("SELECT list(range) FROM range(30000000)")
    assert failed.value.kind == "memory"


def test_instants_are_utc_whatever_the_host_says(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour of an instant does not depend on TZ."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    query = "SELECT hour(TIMESTAMPTZ '2024-01-01 05:00:00+00') AS h"
    assert Engine().query(query).to_pylist() == [{"h": 5}]
