"""2,000 flights of December through the fabric's socket, against the offline path and the text
as it is written.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.features import FeatureBatch, FeatureBlock, FeatureItem, FeatureRequest
from contracts.types import UNSET, Empty
from services.data_fabric.certificate import close, identical
from services.data_fabric.offline import features
from services.data_fabric.service import DataFabric
from services.data_fabric.sql import parse
from shared.environment import Environment
from shared.lifecycle import running
from shared.rpc.client import RpcClient

EXAMPLE = Path(__file__).parents[3] / "examples/flights"
VIEW = (EXAMPLE / "features/departure.sql").read_text()
COLUMNS = list(parse(VIEW).header.request)
REQUESTS = 2_000
in_flight = 500
TRACE = "ef" * 16


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A copy of the flights example on a short path; certified once."""
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    shutil.copytree(EXAMPLE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("models"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def december() -> pa.Table:
    """Every fourteenth flight of December, the last day's without weather among them."""
    table = pq.read_table(EXAMPLE / "data/flights-2013-12.parquet", columns=COLUMNS)
    step = len(table) // REQUESTS
    return table.take(list(range(len(table) - step * REQUESTS, len(table), step)))


@asynccontextmanager
async def fabric(home: Path) -> AsyncIterator[RpcClient]:
    """The running service and a client of it."""
    environment = Environment.for_test("data_fabric", home)
    async with running(DataFabric, environment):
        client = RpcClient(str(environment.run_dir / "data_fabric.sock"), "data_fabric")
        await client.connect(5.0)
        yield client
        await client.close()


def encoded(rows: list[dict[str, Any]]) -> msgspec.Raw:
    """Rows as a client sends them."""
    plain = [{**row, "scheduled_at": row["scheduled_at"].isoformat()} for row in rows]
    return msgspec.Raw(msgspec.msgpack.encode(plain))


async def test_december_online_equals_offline(home: Path, december: pa.Table) -> None:
    """Integers, texts and booleans exactly, floats within 1e-12; from the compiled path, one row
    a request, in the order asked. Where there is weather the view's freshness SLA is kept; the
    last day has none, and its first flights are honestly stale."""
    requests = december.to_pylist()
    async with fabric(home) as client:
        view = (await client.call("views", Empty())).views[0]
        answers = [
            answer
            for start in range(0, REQUESTS, in_flight)
            for answer in await asyncio.gather(
                *(
                    client.call("features", FeatureRequest(view="departure", rows=encoded([row])))
                    for row in requests[start : start + in_flight]
                )
            )
        ]
    sources = {
        "flights": home / "data/flights-*.parquet",
        "weather": home / "data/weather-*.parquet",
        "planes": home / "data/planes.parquet",
        "airports": home / "data/airports.parquet",
    }
    offline = features(VIEW, sources, december).to_pylist()
    assert (view.path, view.state, len(view.fields)) == ("closure", "ready", 41)
    assert view.lineage.certificate is not UNSET
    assert len(answers) == len(offline) == REQUESTS
    for answer, expected in zip(answers, offline, strict=True):
        assert (answer.refused, answer.lineage) == ([], view.lineage)
        assert answer.rows[0].keys() == expected.keys()
        for name, value in answer.rows[0].items():
            same = close if view.fields[name].dtype == "float64" else identical
            assert same(value, expected[name]), (name, value, expected[name])
        if expected["weather_age_min"] is not None:
            assert answer.freshness_s <= view.freshness_s


async def test_micro_batches_are_the_same_features(home: Path, december: pa.Table) -> None:
    """64 requests in one call are what they are alone, as blocks."""
    rows = december.slice(0, 64).to_pylist()
    async with fabric(home) as client:
        items = [FeatureItem(TRACE, encoded([row]), 100_000) for row in rows]
        together = await client.call(
            "features_batch", FeatureBatch(view="departure", view_version="1", items=items)
        )
        for row, item in zip(rows, together.items, strict=True):
            alone = await client.call(
                "features",
                FeatureRequest(view="departure", rows=encoded([row]), format="block"),
            )
            block = msgspec.msgpack.decode(item.block, type=FeatureBlock)
            assert block == alone.block
            assert item.freshness_s == alone.freshness_s
