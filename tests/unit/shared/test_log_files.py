"""The writer: whole lines, rotation shared by processes, drops counted."""

import errno
import json
import os
from pathlib import Path

import pytest

from shared import log_files
from shared.log_files import LogFile

LINE = b'{"event":"' + b"x" * 88 + b'"}\n'
assert len(LINE) == 101


def texts(folder: Path) -> list[str]:
    """All lines of all files, the oldest file first."""
    files = sorted(folder.glob("a.jsonl*"), key=lambda path: path.name, reverse=True)
    return [line for f in files if f.suffix != ".lock" for line in f.read_text().splitlines()]


def test_lines_are_written_in_order(tmp_path: Path) -> None:
    """What was put before the close is in the file, in order, owner only."""
    file = LogFile(tmp_path / "a.jsonl", bytes_max=10_000, files_max=2)
    for number in range(50):
        file.put(b'{"n":%d}\n' % number)
    file.close()
    assert [json.loads(line)["n"] for line in texts(tmp_path)] == list(range(50))
    assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o600


def test_files_rotate_and_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most `files_max` files of about `bytes_max` each are kept, the newest lines of all."""
    monkeypatch.setattr(log_files, "batch_bytes_max", 200)
    file = LogFile(tmp_path / "a.jsonl", bytes_max=1_000, files_max=3)
    for _ in range(100):
        file.put(LINE)
    file.close()
    files = [path for path in tmp_path.glob("a.jsonl*") if path.suffix != ".lock"]
    assert len(files) == 3
    assert all(path.stat().st_size <= 1_000 for path in files)


def test_two_writers_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers rotate the same file without losing or tearing a line."""
    monkeypatch.setattr(log_files, "batch_bytes_max", 300)
    writers = [LogFile(tmp_path / "a.jsonl", bytes_max=2_000, files_max=50) for _ in range(2)]
    for number in range(200):
        for name, writer in enumerate(writers):
            writer.put(
                b'{"w":%d,"n":%d,"text":"0123456789012345678901234567890"}\n' % (name, number)
            )
    for writer in writers:
        writer.close()
    records = [json.loads(line) for line in texts(tmp_path)]
    for name in range(2):
        assert sorted(row["n"] for row in records if row["w"] == name) == list(range(200))


def test_a_full_queue_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the queue's bound records are dropped; the file says how many."""
    monkeypatch.setattr(log_files, "queue_records_max", 10)
    monkeypatch.setattr(LogFile, "_run", lambda self: None)
    file = LogFile(tmp_path / "a.jsonl", bytes_max=10_000, files_max=2)
    for _ in range(25):
        file.put(LINE)
    assert file.dropped == 15
    file._write_queued()
    first = json.loads(texts(tmp_path)[0])
    assert (first["event"], first["count"]) == ("log_records_dropped", 15)
    assert len(texts(tmp_path)) == 11


def test_a_full_disk_drops_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk is full nothing is raised; afterwards whole lines are written again."""
    monkeypatch.setattr(LogFile, "_run", lambda self: None)
    file = LogFile(tmp_path / "a.jsonl", bytes_max=10_000, files_max=2)
    write = os.write

    def short(descriptor: int, block: bytes) -> int:
        return write(descriptor, block[: len(block) // 2])

    def full(descriptor: int, block: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    for failing in (short, full):
        monkeypatch.setattr(os, "write", failing)
        file.put(LINE)
        file._write_queued()
    monkeypatch.setattr(os, "write", write)
    file.put(LINE)
    file._write_queued()
    lines = texts(tmp_path)
    assert file.dropped == 1, "the torn one; the next waited for room"
    assert lines.count(LINE.decode().strip()) == 2
    assert any('"count":1' in line for line in lines)
