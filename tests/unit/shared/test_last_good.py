"""The last-good file: whole or not there, and never trusted when it is damaged."""

from pathlib import Path

import msgspec
import pytest

from contracts.distribution import Position
from contracts.policies import BatchingPolicy, BatchingSpec, PolicySet
from shared.last_good import LastGood, LastGoodFile


def good(sequence: int) -> LastGood:
    """A stored set."""
    policies = [BatchingPolicy(name="m", spec=BatchingSpec(rows_max=sequence))]
    return LastGood(
        position=Position(epoch=1, sequence=sequence, hash="sha256:" + "a" * 64),
        policies=PolicySet(version=sequence, policies=list(policies)),
    )


@pytest.fixture
def file(tmp_path: Path) -> LastGoodFile:
    """A file in a folder that does not exist yet."""
    return LastGoodFile(tmp_path / "policy", "orchestrator", "orchestrator.0-x")


def test_absent_is_not_an_error(file: LastGoodFile) -> None:
    """The first start finds nothing and says so."""
    assert file.read() == (None, "absent")


def test_a_candidate_is_not_the_last_good_one(file: LastGoodFile) -> None:
    """It counts only after it is adopted; dropped, it leaves nothing."""
    file.write_candidate(good(1))
    assert file.read() == (None, "absent")
    file.adopt_candidate()
    assert file.read() == (good(1), "")
    file.write_candidate(good(2))
    assert file.read() == (good(1), "")
    assert [path.name for path in file.path.parent.iterdir()].count("orchestrator.msgpack") == 1


def test_predecessor_and_successor_have_candidates_of_their_own(tmp_path: Path) -> None:
    """Two processes of one service share the last-good file alone."""
    old = LastGoodFile(tmp_path, "orchestrator", "orchestrator.0-x")
    new = LastGoodFile(tmp_path, "orchestrator", "orchestrator.0-y")
    old.write_candidate(good(1))
    new.write_candidate(good(2))
    old.adopt_candidate()
    assert new.read() == (good(1), "")
    new.adopt_candidate()
    assert old.read() == (good(2), "")


def test_every_torn_file_is_refused(file: LastGoodFile) -> None:
    """Cut at any byte, the file counts as none, with the reason."""
    file.write_candidate(good(3))
    file.adopt_candidate()
    whole = file.path.read_bytes()
    for length in range(len(whole)):
        file.path.write_bytes(whole[:length])
        stored, reason = file.read()
        assert stored is None
        assert "damaged" in reason


def test_every_flipped_bit_is_refused(file: LastGoodFile) -> None:
    """One wrong bit in any byte, and the set is not taken."""
    file.write_candidate(good(3))
    file.adopt_candidate()
    whole = file.path.read_bytes()
    for index in range(len(whole)):
        flipped = bytearray(whole)
        flipped[index] ^= 1 << (index % 8)
        file.path.write_bytes(flipped)
        assert file.read()[0] is None


def test_an_unknown_format_is_refused(file: LastGoodFile) -> None:
    """A newer release's file is not guessed at."""
    file.path.parent.mkdir()
    file.path.write_bytes(msgspec.msgpack.encode([2, b"", b""]))
    stored, reason = file.read()
    assert stored is None
    assert "format 2" in reason


def test_what_cannot_be_read_is_named(file: LastGoodFile) -> None:
    """A folder in the file's place is a reason, not a crash."""
    file.path.mkdir(parents=True)
    stored, reason = file.read()
    assert stored is None
    assert "cannot be read" in reason


def test_candidates_of_the_dead_are_swept(tmp_path: Path) -> None:
    """Only those older than a minute: a living predecessor may be about to adopt its own."""
    file = LastGoodFile(tmp_path, "orchestrator", "orchestrator.0-x")
    file.write_candidate(good(1))
    (candidate,) = tmp_path.glob("*.candidate")
    written_s = candidate.stat().st_mtime
    file.sweep(written_s + 59)
    assert candidate.exists()
    file.sweep(written_s + 61)
    assert not candidate.exists()
    LastGoodFile(tmp_path / "none", "x", "x.0-x").sweep(written_s)
