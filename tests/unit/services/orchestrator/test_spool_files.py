"""The spool's files: made ahead, taken over from the dead, removed when acknowledged."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.orchestrator import spool_files
from services.orchestrator.segment import Segment
from services.orchestrator.spool import Spool
from services.orchestrator.spool_files import SpoolFiles

SIZE = 1024 * 1024


def files_in(folder: Path, instance: str = "orchestrator.0-test") -> tuple[Spool, SpoolFiles]:
    """A spool without files, and who tends it."""
    spool = Spool(lambda: None, file_bytes=SIZE, bytes_max=4 * SIZE)
    return spool, SpoolFiles(spool, folder, instance)


def names_in(folder: Path) -> list[str]:
    """Its files."""
    return sorted(path.name for path in folder.iterdir())


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(5.0):
        while True:
            if condition():
                return
            await asyncio.sleep(0)


async def test_there_is_a_file_to_write_and_a_spare(tmp_path: Path) -> None:
    """Two files of the configured size, named after the instance; closing removes empty ones."""
    spool, files = files_in(tmp_path)
    await files.tend()
    assert spool.current is not None
    assert not spool.wants_file
    names = names_in(tmp_path)
    assert names == ["orchestrator.0-test-1.spool", "orchestrator.0-test-2.spool"]
    spool.current.append(b"Rx")
    files.close()
    assert names_in(tmp_path) == names[:1]


async def test_a_full_disk_is_remembered_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool says why it refuses; with room again it has a file."""
    spool, files = files_in(tmp_path)

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    await files.tend()
    assert spool.current is None
    assert "No space left on device" in (spool.fault or "")
    monkeypatch.undo()
    await files.tend()
    assert spool.current is not None
    assert spool.fault is None
    files.close()


async def test_files_of_the_dead_are_adopted_and_those_of_the_living_are_not(
    tmp_path: Path,
) -> None:
    """A foreign file is reported once and left where it is."""
    dead = Segment.create(tmp_path / "dead.spool", SIZE)
    dead.append(b"Rx")
    dead.close()
    alive = Segment.create(tmp_path / "alive.spool", SIZE)
    (tmp_path / "foreign.spool").write_bytes(b"x" * 100)
    spool, files = files_in(tmp_path)
    await files.tend()
    await files.tend()
    assert [segment.name for segment in spool.sealed] == ["dead"]
    alive.append(b"Ry")
    alive.close()
    await files.tend()
    assert sorted(segment.name for segment in spool.sealed) == ["alive", "dead"]
    for segment in spool.sealed:
        segment.acknowledge(segment.part(1, 100))
    await files.tend()
    assert names_in(tmp_path) == [
        "foreign.spool", "orchestrator.0-test-1.spool", "orchestrator.0-test-2.spool",
    ]  # fmt: skip
    files.close()


async def test_before_it_serves_a_process_only_makes_its_own_file(tmp_path: Path) -> None:
    """Clients wait meanwhile: what dead processes left is not even looked at, and a standby's file
    is nobody else's."""
    dead = Segment.create(tmp_path / "dead.spool", SIZE)
    dead.append(b"Rx")
    dead.close()
    standby, files = files_in(tmp_path)
    await files.prepare()
    await files.prepare()
    assert standby.has_room
    assert standby.sealed == []
    active, others = files_in(tmp_path, "orchestrator.0-other")
    await others.tend()
    assert [segment.name for segment in active.sealed] == ["dead"]
    await files.tend()
    assert standby.sealed == []
    files.close()
    others.close()


async def test_a_long_file_is_taken_over_in_turns_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two bounded goes others have their turn; it counts once whole."""
    monkeypatch.setattr(spool_files, "adopted_records_max", 10)
    dead = Segment.create(tmp_path / "dead.spool", SIZE)
    for _ in range(95):
        dead.append(b"Rx")
    dead.close()
    goes: list[int] = []
    recover = Segment.recover

    def counted(segment: Segment, records_max: int) -> bool:
        goes.append(spool.unacknowledged())
        return recover(segment, records_max)

    monkeypatch.setattr(Segment, "recover", counted)
    spool, files = files_in(tmp_path)
    await files.tend()
    assert goes == [0] * 10
    assert spool.unacknowledged() == 95
    files.close()


async def test_a_change_is_tended_at_once(tmp_path: Path) -> None:
    """The writer does not wait for the next look when it has taken the spare."""
    spool, files = files_in(tmp_path)
    changed = asyncio.Event()
    task = asyncio.create_task(files.run(changed))
    await until(lambda: spool.current is not None and not spool.wants_file)
    spool._next_file()
    assert spool.wants_file
    changed.set()
    await until(lambda: not spool.wants_file)
    task.cancel()
    files.close()
