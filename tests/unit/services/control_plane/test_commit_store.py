"""policy.db: append only, read in pages, and honest about damage."""

import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from contracts.policies import BatchingPolicy, BatchingSpec, PolicySet
from contracts.types import UNSET
from services.control_plane import commit_store as module
from services.control_plane.chain import (
    GENESIS,
    Entry,
    StoredEntry,
    change,
    format_instant,
    load,
    store,
)
from services.control_plane.commit_store import CommitStore
from services.control_plane.connection import DatabaseError

COUNT = 25


def make_log(count: int) -> list[StoredEntry]:
    """Commits one second apart."""
    log: list[StoredEntry] = []
    policies = PolicySet(version=0, policies=[])
    for version in range(1, count + 1):
        changed = [BatchingPolicy(name=f"m{version % 3}", spec=BatchingSpec(rows_max=version))]
        policies = change(policies, changed)
        log.append(
            store(
                Entry(
                    version=version,
                    previous=log[-1].hash if log else GENESIS,
                    at=format_instant(version * 1_000_000),
                    author="me",
                    reason="r",
                    peer_uid=0,
                    changed=list(changed),
                    removed=[],
                    policy=policies.digest(),
                )
            )
        )
    return log


LOG = make_log(COUNT)


@pytest.fixture
async def commits(tmp_path: Path) -> AsyncIterator[CommitStore]:
    """A store with the log in it."""
    one = CommitStore.at(tmp_path)
    await one.database.open()
    for entry in LOG:
        await one.append(entry)
    yield one
    await one.database.close()


async def test_what_was_appended_is_read_in_pages(commits: CommitStore) -> None:
    """Oldest first, after a version, up to a limit; the last one by itself."""
    assert await commits.page(0) == LOG
    assert await commits.page(3, 2) == LOG[3:5]
    assert await commits.page(COUNT) == []
    assert await commits.last() == LOG[-1]


async def test_an_empty_store(tmp_path: Path) -> None:
    """Nothing appended: version 0, a valid chain of none, epoch 1."""
    empty = CommitStore.at(tmp_path / "x")
    (tmp_path / "x").mkdir()
    await empty.database.open()
    assert await empty.last() is None
    assert (await empty.replay()).version == 0
    assert (await empty.verify()).head == GENESIS
    assert await empty.epoch() == 1
    await empty.database.close()


async def test_replay_from_the_disk(commits: CommitStore) -> None:
    """To the newest, a version, an instant."""
    assert (await commits.replay()).version == COUNT
    assert (await commits.replay(version=4)).version == 4
    assert (await commits.replay(instant_us=7_500_000)).version == 7


async def test_the_log_can_only_grow(commits: CommitStore) -> None:
    """Even our own code can neither change nor delete an entry, nor write one twice."""
    for statement in ("UPDATE commits SET hash = 'x'", "DELETE FROM commits WHERE version = 3"):
        with pytest.raises(apsw.ConstraintError, match="append only"):
            await commits.database.write(lambda c, sql=statement: c.execute(sql))
    with pytest.raises(apsw.ConstraintError):
        await commits.append(LOG[2])
    assert (await commits.verify()).commits == COUNT


async def test_the_log_is_walked_page_by_page(
    commits: CommitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages shorter than the log, and of exactly its length, give the same verdict and sets."""
    for limit in (1, 7, COUNT, COUNT + 1):
        monkeypatch.setattr(module, "page_items_max", limit)
        for version in (0, 7, 8, COUNT):
            assert (await commits.replay(version=version)).version == version
        assert (await commits.replay()).digest() == load(LOG[-1]).policy
        assert (await commits.replay(instant_us=14_000_000)).version == 14
        verdict = await commits.verify()
        assert (verdict.commits, verdict.head, verdict.broken_at) == (COUNT, LOG[-1].hash, UNSET)


async def test_the_newest_that_fits(commits: CommitStore) -> None:
    """Searching backwards stops at the first answer."""
    found = await commits.newest(
        lambda entry: entry.version if entry.changed[0].name == "m0" else None
    )
    assert found == COUNT - 1
    assert await commits.newest(lambda _entry: None) is None


async def test_the_epoch_only_grows(commits: CommitStore) -> None:
    """Raising it to less than it is changes nothing."""
    await commits.raise_epoch(5)
    await commits.raise_epoch(3)
    assert await commits.epoch() == 5


async def test_a_bit_flipped_in_the_file_never_passes_for_the_truth(
    commits: CommitStore, tmp_path: Path
) -> None:
    """Wherever one bit of the database file flips, the log reads as it was, or the walk names an
    entry, or the file is refused; it never reads as another valid log."""
    await commits.database.close()
    whole = (tmp_path / module.NAME).read_bytes()
    chance = random.Random(20_131)
    outcomes = {"same": 0, "named": 0, "refused": 0}
    for attempt in range(60):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        bit = chance.randrange(8 * len(whole))
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << (bit % 8)
        (folder / module.NAME).write_bytes(flipped)
        one = CommitStore.at(folder)
        try:
            await one.database.open()
            verdict = await one.verify()
            if verdict.broken_at is not UNSET:
                outcomes["named"] += 1
            else:
                assert (verdict.commits, verdict.head) == (COUNT, LOG[-1].hash), bit
                assert await one.page(0) == LOG, bit
                outcomes["same"] += 1
        except (DatabaseError, apsw.Error):
            outcomes["refused"] += 1
        await one.database.close()
        shutil.rmtree(folder)
    assert outcomes["named"] > 0, outcomes
