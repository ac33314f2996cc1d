"""The fabric through its socket: every method, refused rows, deployed and current views."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pyarrow as pa
import pytest

from contracts.distribution import Position
from contracts.errors import MeshError
from contracts.features import (
    FeatureBatch,
    FeatureBlock,
    FeatureItem,
    FeatureRequest,
    LineageRequest,
)
from contracts.types import UNSET, Empty
from services.data_fabric import config, validation
from services.data_fabric.service import DataFabric
from services.data_fabric.sql import text_digest
from shared.environment import Environment
from shared.last_good import LastGood, LastGoodFile
from shared.lifecycle import running
from shared.rpc.client import RpcClient
from tests.unit.services.data_fabric.deployed import deployed
from tests.unit.services.data_fabric.loaded import encode, with_few_rows
from tests.unit.services.data_fabric.plans import line_of
from tests.unit.services.data_fabric.small_home import VIEW, SmallHome, at

TRACE = "cd" * 16
GOOD = {"at": at(200), "station": "A", "vehicle": 3, "weight": 12.5}
OLD = VIEW.replace("r.at - INTERVAL 1 DAY", "r.at - INTERVAL 2 DAY")
ON_ENGINE = VIEW.replace("CAST(s.trips_1d AS", "CAST(abs(s.trips_1d) AS")


@pytest.fixture
def home(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallHome]:
    """The small home on a short path."""
    with_few_rows(monkeypatch)
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    home = SmallHome.create(folder)
    shutil.copytree(certificates, home.certificates)
    yield home
    shutil.copytree(home.certificates, certificates, dirs_exist_ok=True)
    shutil.rmtree(folder)


def deploy(home: SmallHome, *texts: str) -> None:
    """Packs with these view texts, deployed by the last good policies."""
    stored = LastGood(
        position=Position(epoch=1, sequence=1, hash=text_digest("")),
        policies=deployed(home, *texts),
    )
    folder = home.path / ".mortise/policy"
    folder.mkdir(parents=True, exist_ok=True)
    file = LastGoodFile(folder, "data_fabric", "test")
    file.write_candidate(stored)
    file.adopt_candidate()


@asynccontextmanager
async def fabric(home: SmallHome) -> AsyncIterator[RpcClient]:
    """The running service and a client of it."""
    environment = Environment.for_test("data_fabric", home.path)
    async with running(DataFabric, environment):
        client = RpcClient(str(environment.run_dir / "data_fabric.sock"), "data_fabric")
        await client.connect(5.0)
        yield client
        await client.close()


def request(rows: list[dict[str, Any]], **options: Any) -> FeatureRequest:
    """A features body."""
    return FeatureRequest(view="trip", rows=msgspec.Raw(encode(rows)), **options)


def batch(*requests: Any) -> FeatureBatch:
    """A features_batch body; a request is a list of rows, or bytes as they are."""
    items = [
        FeatureItem(TRACE, msgspec.Raw(one if isinstance(one, bytes) else encode(one)), 10**6)
        for one in requests
    ]
    return FeatureBatch(view="trip", view_version="1", items=items)


async def test_features_in_every_format(home: SmallHome) -> None:
    """Maps, an Arrow stream and a block say the same; lineage and freshness come along."""
    two = [GOOD, {**GOOD, "vehicle": None}]
    async with fabric(home) as client:
        rows = await client.call("features", request(two))
        arrow = await client.call("features", request(two, format="arrow"))
        block = await client.call("features", request([GOOD], format="block"))
    assert rows.rows[0]["weight_class"] == "heavy"
    assert rows.rows[0]["last_end"].endswith("+00:00")
    assert rows.rows[1]["last_end"] is None
    table = pa.ipc.open_stream(arrow.arrow).read_all()
    assert table.drop_columns("last_end").to_pylist() == [
        {name: value for name, value in row.items() if name != "last_end"} for row in rows.rows
    ]
    assert (block.block.view, block.block.rows) == (text_digest(VIEW), 1)
    assert rows.lineage == arrow.lineage == block.lineage
    assert rows.lineage.certificate is not UNSET
    assert rows.freshness_s == 2.1 * 3_600
    assert (rows.frozen, rows.refused) == ([], [])


async def test_bad_rows_are_refused_and_kept_aside_while_good_ones_go_on(home: SmallHome) -> None:
    """Each with its index, field, limit, value and trace; the quarantine has it too."""
    rows = [GOOD, {**GOOD, "station": "far too long"}, {**GOOD, "vehicle": 1_001}, GOOD]
    async with fabric(home) as client:
        answer = await client.call("features", request(rows), trace_id=TRACE)
        statistics = (await client.call("statistics", Empty())).values
    assert len(answer.rows) == 2
    first, second = answer.refused
    assert (first.row, first.error.name, first.error.trace_id) == (1, "FEATURE_INVALID", TRACE)
    assert first.error.details == {
        "row": 1, "field": "station", "limit": "at most 8 characters", "value": "'far too long'",
    }  # fmt: skip
    assert second.error.details["field"] == "vehicle"
    assert (statistics["rows"], statistics["rows_refused"]) == (2, 2)
    kept = next((home.path / ".mortise/fabric/quarantine").iterdir()).read_text()
    assert kept.count(TRACE) == 2


async def test_requests_of_a_micro_batch_do_not_share_fate(home: SmallHome) -> None:
    """One good, one with a bad row beside a good one, one all bad, one that is no list."""
    bad = {**GOOD, "weight": "heavy"}
    async with fabric(home) as client:
        answer = await client.call(
            "features_batch", batch([GOOD], [bad, GOOD], [bad], msgpack.packb({"a": 1}), [])
        )
    good, mixed, refused, broken, empty = answer.items
    assert good.error is UNSET
    assert msgspec.msgpack.decode(good.block, type=FeatureBlock).rows == 1
    assert msgspec.msgpack.decode(mixed.block, type=FeatureBlock).rows == 1
    assert [one.row for one in mixed.refused] == [0]
    assert refused.block is UNSET
    assert (refused.error.name, refused.error.trace_id) == ("FEATURE_INVALID", TRACE)
    assert broken.error.name == "INVALID_REQUEST"
    assert msgspec.msgpack.decode(empty.block, type=FeatureBlock).rows == 0
    assert answer.sent_us >= answer.received_us > 0


async def test_a_long_call_is_computed_in_slices_and_says_the_same(
    home: SmallHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, refused rows with the index of the request."""
    rows = [{**GOOD, "vehicle": number - 1} for number in range(300)]
    rows[200] = {**GOOD, "vehicle": -6}
    async with fabric(home) as client:
        long = await client.call("features", request(rows))
        each = [await client.call("features", request([row])) for row in rows[100:104]]
        many = await client.call("features_batch", batch(rows, [GOOD]))
    assert len(long.rows) == 299
    assert [one.row for one in long.refused] == [200]
    assert long.refused[0].error.message.startswith("row 200: vehicle is -6")
    assert long.rows[100:104] == [answer.rows[0] for answer in each]
    assert [len(item.refused) for item in many.items] == [1, 0]
    assert config.inline_rows_max < 300 < validation.rows_per_request_max


async def test_a_view_on_the_engine_answers_the_same(home: SmallHome) -> None:
    """Through the socket, in micro-batches; its path is told."""
    async with fabric(home) as client:
        compiled = await client.call("features", request([GOOD] * 3))
    SmallHome.create(home.path, view=ON_ENGINE)
    async with fabric(home) as client:
        view = (await client.call("views", Empty())).views[0]
        answers = await asyncio.gather(
            *(client.call("features", request([GOOD] * 3)) for _ in range(5))
        )
        mixed = await client.call(
            "features_batch", batch([GOOD], [{**GOOD, "station": 5}], [GOOD, GOOD])
        )
    assert (view.path, view.state) == ("engine", "ready")
    assert "ABS" in view.reason
    for answer in answers:
        assert answer.rows == compiled.rows
        assert answer.freshness_s == compiled.freshness_s
    assert [len(item.refused) for item in mixed.items] == [0, 1, 0]


async def test_views_and_lineage_tell_what_is_loaded(home: SmallHome) -> None:
    """The contract as it is signed, digests, sources and columns."""
    async with fabric(home) as client:
        view = (await client.call("views", Empty())).views[0]
        lineage = await client.call("lineage", LineageRequest(view="trip", view_version="1"))
        with pytest.raises(MeshError, match="VIEW_UNKNOWN"):
            await client.call("lineage", LineageRequest(view="nothing"))
        with pytest.raises(MeshError, match="VIEW_UNKNOWN"):
            await client.call("features", request([GOOD], view_version="2"))
    assert (view.name, view.version, view.state, view.path) == ("trip", "1", "ready", "closure")
    assert view.request["station"].characters_max == 8
    assert lineage.lineage == view.lineage
    assert {row.source for row in lineage.sources} == {"trips", "stations"}
    assert set(lineage.columns) == set(view.fields)


async def test_without_a_policy_it_is_live_but_not_ready(home: SmallHome) -> None:
    """It answers all the same: the home's own text needs no policy."""
    async with fabric(home) as client:
        health = await client.call("health", Empty())
    assert (health.ready, health.degraded, health.policy_version) == (False, False, 0)
    assert health.reasons == ["no policy version yet"]


async def test_a_deployed_view_is_the_pack_s_text_whatever_the_file_says(home: SmallHome) -> None:
    """From the last good policies, with no control plane."""
    deploy(home, OLD)
    async with fabric(home) as client:
        health = await client.call("health", Empty())
        views = (await client.call("views", Empty())).views
        answer = await client.call("features", request([GOOD], format="block"))
    assert (health.ready, health.degraded, health.policy_version) == (True, False, 1)
    assert [view.digest for view in views] == [text_digest(OLD)]
    assert answer.block.view == text_digest(OLD)


async def test_two_texts_of_one_version_degrade(home: SmallHome) -> None:
    """The first goes on; the second is told with its reason."""
    deploy(home, OLD, VIEW)
    async with fabric(home) as client:
        health = await client.call("health", Empty())
        answer = await client.call("features", request([GOOD], format="block"))
    assert (health.ready, health.degraded) == (True, True)
    assert "is another text" in health.reasons[0]
    assert answer.block.view == text_digest(OLD)


async def test_a_view_that_cannot_be_loaded_degrades(home: SmallHome) -> None:
    """Refused by the linter, or by its header: the reason has the line."""
    text = VIEW.replace("10e0", "10.5")
    SmallHome.create(home.path, view=text)
    (home.path / "features/broken.sql").write_text("SELECT 1")
    async with fabric(home) as client:
        health = await client.call("health", Empty())
        with pytest.raises(MeshError, match=r"VIEW_UNKNOWN.*decimal in one engine"):
            await client.call("features", request([GOOD]))
    assert health.degraded
    assert any(reason.startswith("features/broken.sql: line 1:") for reason in health.reasons)
    assert any(
        f"line {line_of(text, '10.5')}: 10.5 is a decimal" in reason for reason in health.reasons
    )


async def test_long_calls_are_bounded(home: SmallHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than `slow_calls_max` is told to come again."""
    monkeypatch.setattr("services.data_fabric.answers.slow_calls_max", 0)
    async with fabric(home) as client:
        with pytest.raises(MeshError, match=r"OVERLOADED.*slow_calls_max is 0") as refused:
            await client.call("features", request([GOOD] * 100))
    assert refused.value.retry_after_ms == 50
