"""The offline path: the request's order, the header's types, and batches that change nothing."""

import pyarrow as pa
import pyarrow.parquet
import pytest

from services.data_fabric import offline as offline_module
from services.data_fabric.engine import Engine
from services.data_fabric.evaluation import identify, materialise, request_table
from services.data_fabric.offline import feature_batches, features
from services.data_fabric.plan import bind
from services.data_fabric.refusal import SourceRefused, ViewRefused
from services.data_fabric.rewrite import ROW
from services.data_fabric.sources import SourceReader
from services.data_fabric.sql import parse
from tests.unit.services.data_fabric import small_home
from tests.unit.services.data_fabric.small_home import VIEW, SmallHome, at

ROWS = [
    {"at": at(hours % 281), "station": "CABD"[hours % 4], "vehicle": hours % 13, "weight": None}
    for hours in range(0, 900, 7)
]
REQUEST = small_home.request_table(ROWS)


def test_rows_keep_the_request_s_order(home: SmallHome) -> None:
    """And columns the header's order and types."""
    table = features(VIEW, home.sources, REQUEST)
    assert table.schema.names == list(parse(VIEW).header.fields)
    assert table.schema.field("last_end").type == pa.timestamp("us", tz="UTC")
    backwards = features(VIEW, home.sources, REQUEST.take(list(reversed(range(len(ROWS))))))
    assert backwards.to_pylist() == table.to_pylist()[::-1]


def test_batches_change_nothing(home: SmallHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request in slices of ten gives what it gives at once; no rows give no rows."""
    whole = features(VIEW, home.sources, REQUEST)
    monkeypatch.setattr(offline_module, "offline_rows", 10)
    batches = list(feature_batches(VIEW, home.sources, REQUEST))
    assert max(map(len, batches)) <= 10
    assert pa.Table.from_batches(batches) == whole
    assert len(features(VIEW, home.sources, REQUEST.slice(0, 0))) == 0


def test_the_split_text_says_what_the_whole_text_says(home: SmallHome) -> None:
    """Relations first and the request's part after them, against the text as it is written."""
    view, reader = parse(VIEW), SourceReader()
    places = {name: (home.path, pattern) for name, pattern in small_home.PATTERNS.items()}
    sources = identify(reader, view, places)
    plan = bind(view, {name: source.columns() for name, source in sources.items()})
    engine = Engine()
    materialise(engine, reader, plan, sources)
    for name, columns in plan.source_columns.items():
        engine.create_table(name, reader.stream(sources[name], columns).arrow)
    engine.create_table("request", request_table(view, REQUEST).drop_columns(ROW))
    whole = engine.query(view.tree.sql("duckdb", comments=False)).to_pylist()
    split = features(VIEW, home.sources, REQUEST).to_pylist()
    engine.close()
    assert sorted(map(repr, whole)) == sorted(map(repr, split))


def test_a_source_that_changes_meanwhile_is_named(
    home: SmallHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason survives the way through the engine."""
    real = SourceReader.identify

    def then_replace(self: SourceReader, *arguments: object) -> object:
        found = real(self, *arguments)  # type: ignore[arg-type]
        SmallHome.create(home.path, trips=small_home.SOME_TRIPS.slice(0, 40))
        return found

    monkeypatch.setattr(SourceReader, "identify", then_replace)
    with pytest.raises(SourceRefused, match="changed while it was read"):
        features(VIEW, home.sources, REQUEST)


def test_a_source_that_is_not_given_is_named(home: SmallHome) -> None:
    """The caller forgot one."""
    with pytest.raises(SourceRefused, match="there is no source trips"):
        features(VIEW, {"stations": home.sources["stations"]}, REQUEST)


def test_a_relation_that_is_not_single_valued_is_refused(home: SmallHome) -> None:
    """Two stations of one name would double a request's row."""
    stations = pa.concat_tables([small_home.SOME_STATIONS] * 2)
    pa.parquet.write_table(stations, home.path / "data/stations.parquet")
    with pytest.raises(ViewRefused, match=r"stations has different rows with the same \(station\)"):
        features(VIEW, home.sources, REQUEST)
