"""Indexes on disk: what comes back is what was put, or nothing."""

from array import array
from pathlib import Path
from typing import Any

import pytest

from services.data_fabric import index_store, loading
from services.data_fabric.index_store import IndexStore
from services.data_fabric.online import Index, empty_entry
from tests.unit.services.data_fabric.loaded import load, online
from tests.unit.services.data_fabric.small_home import SOME_TRIPS, SmallHome, at

KEY = "sha256:" + "1" * 64
TIMED = Index(
    "timed", ("k", "m"), "t", ("n", "x", "s"), (5, 7),
    {"k": "string", "m": "int64", "t": "timestamp", "n": "int64", "x": "float64", "s": "string"},
    frozenset({"n", "x"}),
    {
        ("é", -1): (array("q", [-(2**63), 5]), array("q", [0, 2**62]), array("d", [0, -0.0]),
                    [None, "🛫"], array("i", [1, 1, 2]), array("i", [1, 1, 2])),
        ("", 2**40): (array("q", [-(2**63)]), array("q", [0]), array("d", [0]), [None],
                      array("i", [1, 1]), array("i", [1, 1])),
    },
    empty_entry("t", ("n", "x", "s"), (5, 7)),
    1,
)  # fmt: skip
KEYED = Index(
    "keyed", ("k",), None, ("a", "b"), (), {"k": "int64", "a": "bool", "b": "float64"},
    frozenset(), {7: (True, None), -7: (None, 0.5)}, (None, None), 2,
)  # fmt: skip
INDEXES = {("timed", ("k", "m"), "t"): TIMED, ("keyed", ("k",), None): KEYED}


def test_indexes_come_back_as_they_were(tmp_path: Path) -> None:
    """Keys, arrays with their types, lists with nulls, signed zeros."""
    store = IndexStore(tmp_path / "indexes")
    assert store.get(KEY) is None
    store.put(KEY, INDEXES)
    found = store.get(KEY)
    assert found == INDEXES
    assert found is not None
    parts = found["timed", ("k", "m"), "t"].entries["é", -1]
    assert [getattr(part, "typecode", "") for part in parts] == ["q", "q", "d", "", "i", "i"]
    assert str(parts[2][1]) == "-0.0"


@pytest.mark.parametrize("damage", [b"", b"\0" * 10, None])
def test_a_damaged_file_is_ignored(tmp_path: Path, damage: bytes | None) -> None:
    """Empty, cut, or with one bit flipped."""
    store = IndexStore(tmp_path)
    store.put(KEY, INDEXES)
    file = next(tmp_path.iterdir())
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content if damage is None else damage)
    assert store.get(KEY) is None


def test_only_the_newest_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a disk that refuses is no reason to fail."""
    monkeypatch.setattr(index_store, "stored_views_max", 1)
    store = IndexStore(tmp_path)
    for digit in "12":
        store.put("sha256:" + digit * 64, INDEXES)
    assert [path.stem for path in tmp_path.iterdir()] == ["2" * 64]
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    IndexStore(blocked).put(KEY, INDEXES)
    assert IndexStore(blocked).get(KEY) is None


def test_a_second_start_needs_no_engine(home: SmallHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same features from stored indexes; other content is computed again."""
    rows: list[dict[str, Any]] = [
        {"at": at(hours), "station": "A", "vehicle": 3, "weight": 1.0} for hours in (1, 50, 300)
    ]
    first = load(home)
    with monkeypatch.context() as patch:
        patch.setattr(loading, "Engine", lambda: pytest.fail("the engine was started"))
        second = load(home)
    assert second.lineage == first.lineage
    assert online(second, rows).rows == online(first, rows).rows
    assert "materialise" not in second.durations_s
    SmallHome.create(home.path, trips=SOME_TRIPS.slice(0, 100))
    assert online(load(home), rows).rows != online(first, rows).rows
