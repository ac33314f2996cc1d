"""Refused rows are kept with their trace id, bounded by bytes, days and a queue."""

import json
import os
import stat
from pathlib import Path

import msgpack
import pytest

from contracts.errors import MeshError
from contracts.policies import RetentionSpec
from services.data_fabric import quarantine as quarantine_module
from services.data_fabric.quarantine import Quarantine
from services.data_fabric.validation import Refused
from shared.clock import ManualClock

TRACE = "ab" * 16


def refused(content: object, row: int = 3) -> Refused:
    """A refused row."""
    error = MeshError("FEATURE_INVALID", "row 3: x is 9", details={"field": "x", "row": row})
    return Refused(row, error, content if isinstance(content, bytes) else msgpack.packb(content))


def records(folder: Path) -> list[dict[str, object]]:
    """Every record, in order."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def test_a_refused_row_is_kept_with_its_trace(tmp_path: Path) -> None:
    """What was sent, why it was refused, and under which trace; readable by the owner alone."""
    folder = tmp_path / "quarantine"
    quarantine = Quarantine(folder, ManualClock())
    quarantine.put(TRACE, "v", "1", refused({"x": 9, "s": "é\n"}))
    quarantine.put(TRACE, "v", "1", refused(b"\x81\x01\xc7\x04\x05abcd"))
    quarantine.close()
    first, second = records(folder)
    assert first["trace_id"] == TRACE
    assert first["content"] == {"x": 9, "s": "é\n"}
    assert first["details"] == {"field": "x", "row": 3}
    assert "encoded" in second
    assert quarantine.written == 2
    assert stat.S_IMODE(next(folder.iterdir()).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_old_files_and_too_many_bytes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the retention policy in force, oldest first."""
    monkeypatch.setattr(quarantine_module, "quarantine_file_bytes", 1)
    clock = ManualClock()
    clock.advance(100 * 86_400)

    def put(row: int, retention: RetentionSpec) -> list[object]:
        clock.advance(1)
        quarantine = Quarantine(tmp_path, clock)
        quarantine.retain(retention)
        quarantine.put(TRACE, "v", "1", refused({}, row))
        quarantine.close()
        for path in tmp_path.glob("*.jsonl"):
            os.utime(path, (clock.wall(), int(path.stem) / 1e6))
        return [record["row"] for record in records(tmp_path)]

    default = RetentionSpec()
    assert put(1, default) == [1]
    assert put(2, default) == [1, 2]
    clock.advance(8 * 86_400)
    assert put(3, default) == [3]
    size = next(tmp_path.iterdir()).stat().st_size
    assert put(4, RetentionSpec(dumps_bytes_max=size * 2 + 10)) == [3, 4]
    assert put(5, RetentionSpec(dumps_bytes_max=size * 2 + 10)) == [4, 5]


def test_what_does_not_fit_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop never waits for the disk; a disk that refuses loses rows, not requests."""
    folder = tmp_path / "file"
    folder.write_text("in the way")
    quarantine = Quarantine(folder / "q", ManualClock())
    quarantine.put(TRACE, "v", "1", refused({}))
    quarantine.close()
    assert (quarantine.written, quarantine.dropped) == (0, 1)
    for _ in range(quarantine_module.quarantine_waiting_max + 5):
        quarantine.put(TRACE, "v", "1", refused({}))
    assert quarantine.dropped == 6


def test_a_long_row_is_cut(tmp_path: Path) -> None:
    """A queue of rows stays small, whatever was sent."""
    quarantine = Quarantine(tmp_path, ManualClock())
    quarantine.put(TRACE, "v", "1", refused({"x": "é" * 1_000_000}))
    quarantine.close()
    record = records(tmp_path)[0]
    assert len(str(record["encoded"])) < 2 * quarantine_module.quarantine_row_bytes
