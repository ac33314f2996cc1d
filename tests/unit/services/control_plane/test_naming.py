"""`snapshot` of a model with a feature view: what the fabric says, and what it means if it is
silent."""

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts import control
from contracts.features import FeatureLineage, ViewRow, Views
from contracts.lineage import Combination, Receipt, data_digest
from contracts.methods import METHODS
from contracts.pack import ViewReference
from contracts.types import UNSET, Empty
from shared.access import Access
from shared.packs import read_manifest
from shared.rpc.server import Call, Server

ROOT = Path(__file__).parents[4]
DATA, CODE = ("sha256:" + letter * 64 for letter in "ab")


@pytest.fixture
def flights(home: Path) -> Path:
    """The home with the flights example's packs and policies instead of bench's."""
    example = ROOT / "examples" / "flights"
    shutil.rmtree(home / "models")
    shutil.copytree(example / "models", home / "models")
    shutil.copy(example / "policies.toml", home / "policies.toml")
    return home


def reference(home: Path) -> ViewReference:
    """The view of the first pack."""
    for folder in sorted((home / "models").iterdir()):
        view = read_manifest(home / "models", f"sha256:{folder.name}").contract.view
        assert view is not UNSET
        return view
    raise AssertionError("no pack")


@pytest.fixture
async def plane(flights: Path, start: Callable[..., Any]) -> AsyncIterator[Any]:
    """A control plane of the flights home."""
    async with start(flights) as running:
        yield running


async def serve_views(home: Path, views: list[ViewRow]) -> Server:
    """A fabric's socket that answers `views`."""
    handlers: dict[str, Callable[[Call], Any]] = dict.fromkeys(
        set(METHODS["data_fabric"]) - {"ping", "describe"}, lambda _call: Empty()
    )
    handlers["views"] = lambda _call: Views(views=views)
    server = Server("data_fabric", handlers, instance="data_fabric.0-x", access=Access.owner())
    await server.start_path(home / ".mortise" / "run" / "data_fabric.sock")
    return server


def row(view: ViewReference, **fields: Any) -> ViewRow:
    """A view as the fabric holds it."""
    return ViewRow(
        name=view.name,
        version=view.version,
        digest=view.digest,
        state="ready",
        entity="e",
        event_time="t",
        freshness_s=30.0,
        owner="o",
        request={},
        fields={},
        **fields,
    )


async def test_now_is_what_the_fabric_reports(plane: Any, flights: Path) -> None:
    """Data = its sources × its feature code, for every model with this view."""
    lineage = FeatureLineage(data=DATA, feature_code=CODE, certificate=DATA)
    server = await serve_views(flights, [row(reference(flights), lineage=lineage)])
    snapshot = await plane.call("snapshot", control.SnapshotRequest())
    assert set(snapshot.versions) == {"delay", "delay_small"}
    for name, version in snapshot.versions.items():
        assert version.data == data_digest(DATA, CODE)
        assert snapshot.combinations[name].lineage.certificate == DATA
        assert snapshot.combinations[name].view == "departure"
    await server.drain(0.0)


@pytest.mark.parametrize("known", ["nothing", "another digest", "no lineage yet"])
async def test_data_that_nobody_knows_is_not_named(plane: Any, flights: Path, known: str) -> None:
    """The model is left out: a guessed digest could not be reproduced."""
    view = reference(flights)
    views = {
        "nothing": [],
        "another digest": [row(msgspec.structs.replace(view, digest=DATA))],
        "no lineage yet": [row(view)],
    }[known]
    server = await serve_views(flights, views)
    snapshot = await plane.call("snapshot", control.SnapshotRequest())
    assert snapshot.versions == {}
    await server.drain(0.0)


async def test_a_silent_fabric_is_made_good_by_the_last_receipt(plane: Any, flights: Path) -> None:
    """What answered last is named, as long as the fabric is away."""
    lineage = FeatureLineage(data=DATA, feature_code=CODE)
    server = await serve_views(flights, [row(reference(flights), lineage=lineage)])
    before: Combination = (
        await plane.call("snapshot", control.SnapshotRequest(model="delay"))
    ).combinations["delay"]
    await server.drain(0.0)
    assert (await plane.call("snapshot", control.SnapshotRequest())).versions == {}
    receipt = Receipt(
        "t", "r", "1" * 32, 1_000_000, "ok", "delay", "1", 1, before.lineage.snapshot, "default",
        False, [], 2, 0, 1, 0, 0, 10, 100, [1] * 8, [],
    )  # fmt: skip
    body = control.Receipts(
        spool="s",
        through=1,
        receipts=[msgspec.Raw(msgspec.msgpack.encode(receipt))],
        combinations=[before],
    )
    await plane.call("receipts", body)
    after = await plane.call("snapshot", control.SnapshotRequest())
    assert after.combinations == {"delay": before}
