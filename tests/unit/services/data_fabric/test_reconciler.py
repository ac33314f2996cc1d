"""Held views follow deployments, files and sources; what fails leaves what was there."""

from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.policies import VERSION_0
from contracts.types import UNSET
from services.data_fabric import reconciler as reconciler_module
from services.data_fabric.loading import Loader
from services.data_fabric.reconciler import Reconciler
from services.data_fabric.sql import text_digest
from services.data_fabric.views import Views
from shared.clock import SYSTEM
from tests.unit.services.data_fabric.deployed import deployed
from tests.unit.services.data_fabric.small_home import PATTERNS, SOME_TRIPS, VIEW, SmallHome

OLD = VIEW.replace("r.at - INTERVAL 1 DAY", "r.at - INTERVAL 2 DAY")
UNVERSIONED: Any = UNSET


class Followed:
    """A reconciler that looks when it is told to."""

    def __init__(self, home: SmallHome) -> None:
        self.views = Views()
        self.ended = 0
        loader = Loader(home.path, PATTERNS, home.certificates, SYSTEM)
        self.reconciler = Reconciler(self.views, loader, home.path, self._count)

    def _count(self) -> None:
        self.ended += 1

    @property
    def digests(self) -> list[str]:
        """What is held."""
        return list(self.views.held)

    @property
    def data(self) -> str:
        """The data digest of the view that answers."""
        return str(self.views.find("trip", UNVERSIONED).lineage.data)


@pytest.fixture
async def followed(home: SmallHome, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Followed]:
    """The small home, followed; nothing is looked at by itself."""
    monkeypatch.setattr(reconciler_module, "source_poll_s", 3_600.0)
    found = Followed(home)
    yield found
    await found.reconciler.close()


async def test_the_home_s_text_is_loaded_and_then_the_pack_s(
    home: SmallHome, followed: Followed
) -> None:
    """A deployment replaces the file's text; without it the file's text is back."""
    await followed.reconciler.reconcile()
    assert followed.digests == [text_digest(VIEW)]
    followed.reconciler.activate(deployed(home, OLD))
    await followed.reconciler.settled.wait()
    assert followed.digests == [text_digest(OLD)]
    followed.reconciler.activate(VERSION_0)
    await followed.reconciler.settled.wait()
    assert followed.digests == [text_digest(VIEW)]
    assert followed.ended == 3


async def test_new_content_flips_in_and_drifted_content_does_not(
    home: SmallHome, followed: Followed
) -> None:
    """A failed reload is told, and tried again only after another change."""
    await followed.reconciler.reconcile()
    first = followed.data
    await followed.reconciler.reconcile()
    assert (followed.data, followed.ended) == (first, 1)
    SmallHome.create(home.path, trips=SOME_TRIPS.slice(0, 380))
    await followed.reconciler.reconcile()
    second = followed.data
    assert second != first
    drifted = SOME_TRIPS.set_column(4, "distance_km", pa.array(["far"] * len(SOME_TRIPS)))
    pq.write_table(drifted, home.path / "data/trips-2.parquet")
    for _ in range(3):
        await followed.reconciler.reconcile()
    held = followed.views.held[text_digest(VIEW)]
    assert (followed.data, held.state, followed.ended) == (second, "ready", 3)
    assert "distance_km is string in trips-2.parquet" in held.reason
    SmallHome.create(home.path, trips=SOME_TRIPS.slice(0, 380))
    await followed.reconciler.reconcile()
    assert (followed.data, held.reason) == (second, "")


async def test_a_missing_file_fails_until_it_is_there(home: SmallHome, followed: Followed) -> None:
    """The view is loaded as soon as its source can be read."""
    stations = home.path / "data/stations.parquet"
    content = stations.read_bytes()
    stations.unlink()
    await followed.reconciler.reconcile()
    held = followed.views.held[text_digest(VIEW)]
    assert (held.state, held.reason) == (
        "failed", "stations: no file matches data/stations.parquet",
    )  # fmt: skip
    stations.write_bytes(content)
    await followed.reconciler.reconcile()
    assert held.state == "ready"


async def test_what_cannot_be_read_is_told(home: SmallHome, followed: Followed) -> None:
    """A file that is no view, and a deployed pack that is not there."""
    (home.path / "features/broken.sql").write_text("SELECT 1")
    policies = deployed(home, OLD)
    for folder in (home.path / "models").iterdir():
        folder.rename(home.path / "gone")
    followed.reconciler.activate(policies)
    await followed.reconciler.settled.wait()
    pack, file = followed.reconciler.problems
    assert pack.startswith("pack sha256:")
    assert file == "features/broken.sql: line 1: a view begins with a /* mortise … */ comment"
    assert followed.reconciler.is_informed
