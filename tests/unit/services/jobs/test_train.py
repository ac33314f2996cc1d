"""Training on a small made-up table: deterministic, and its packs keep their promises."""

import datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from contracts.errors import MeshError
from contracts.features import Dtype
from contracts.pack import ColumnEncoder
from services.jobs.dataset import make_dataset, to_columns
from services.jobs.train import references
from services.jobs.training import train
from services.jobs.training_config import ModelConfig, SmallConfig, read_config, read_small
from services.jobs.training_inputs import Inputs
from services.model_runtime.encoding import Encoding
from shared.packs import pack_path, read_view, verify

FLIGHTS = Path(__file__).parents[4] / "examples/flights"
FIELDS: dict[str, Dtype] = {
    "origin": "string",
    "dest": "string",
    "hour_local": "int64",
    "temp": "float64",
    "is_weekend": "bool",
    "month": "int64",
}
VIEW_SQL = "/* mortise */ SELECT 1"


def inputs(rows: int = 2_000, seed: int = 1) -> Inputs:
    """Flights whose lateness depends on the hour, the temperature and the origin; some have no
    arrival."""
    random = np.random.default_rng(seed)
    origin = random.choice(["EWR", "JFK", "LGA"], rows)
    hour = random.integers(5, 23, rows)
    temp = random.normal(50, 20, rows)
    chance = 1 / (1 + np.exp(-((hour - 15) / 3 + (50 - temp) / 20 + (origin == "EWR"))))
    delay = np.where(random.random(rows) < chance, 60.0, 0.0)
    start = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)
    at = [start + datetime.timedelta(days=float(day)) for day in np.linspace(0, 364, rows)]
    features = pa.table(
        {
            "origin": origin,
            "dest": random.choice(["LAX", "SFO"], rows),
            "hour_local": hour,
            "temp": pa.array(temp, mask=random.random(rows) < 0.1),
            "is_weekend": random.random(rows) < 2 / 7,
            "month": [instant.month for instant in at],
        }
    )
    return Inputs(
        view_sql=VIEW_SQL,
        view_version="1",
        fields=FIELDS,
        features=features,
        event_time=pa.chunked_array([pa.array(at, pa.timestamp("us", tz="UTC"))]),
        outcome=pa.chunked_array([pa.array(delay, mask=random.random(rows) < 0.05)]),
        sources="sha256:" + "0" * 64,
        feature_code="sha256:" + "1" * 64,
    )


@pytest.fixture
def configs() -> tuple[ModelConfig, SmallConfig]:
    """The committed files, with less to do."""
    config = read_config(FLIGHTS / "model.toml")
    small = read_small(FLIGHTS / "model_small.toml")
    replace = msgspec.structs.replace
    view = replace(config.view, categories=["origin", "dest"])
    training = replace(config.training, epochs=4, batch_rows=64)
    return replace(config, view=view, training=training), replace(
        small, training=replace(small.training, epochs=4, batch_rows=64)
    )


def test_two_runs_give_identical_digests(
    tmp_path: Path, configs: tuple[ModelConfig, SmallConfig]
) -> None:
    """Same inputs, same configuration: the same packs, byte for byte; both verify."""
    _, first = train(inputs(), *configs, tmp_path / "a")
    _, second = train(inputs(), *configs, tmp_path / "b")
    assert {name: model.digest for name, model in first.items()} == {
        name: model.digest for name, model in second.items()
    }
    for model in first.values():
        manifest = verify(pack_path(tmp_path / "a", model.digest), model.digest)
        assert manifest.contract.labels == ["late", "on_time"]
        assert manifest.provenance.data == inputs().sources
        assert read_view(tmp_path / "a", model.digest) == VIEW_SQL


def test_another_seed_gives_another_pack(
    tmp_path: Path, configs: tuple[ModelConfig, SmallConfig]
) -> None:
    """The digest is the weights', not the configuration's name."""
    config, small = configs
    training = msgspec.structs.replace(config.training, seed=1)
    _, first = train(inputs(), *configs, tmp_path)
    _, other = train(inputs(), msgspec.structs.replace(config, training=training), small, tmp_path)
    assert first["delay"].digest != other["delay"].digest


def test_the_models_learn_and_the_distilled_one_follows(
    tmp_path: Path, configs: tuple[ModelConfig, SmallConfig]
) -> None:
    """Rows they never saw are ranked well; a reference on the same rows stands beside them."""
    made = inputs()
    dataset, trained = train(made, *configs, tmp_path)
    assert trained["delay"].scores["auc"] > 0.75
    assert trained["delay_small"].scores["auc"] > 0.75
    assert list(references(made, dataset, configs[0], compare=False)) == ["route_and_hour_rate"]


def test_rows_without_a_label_are_left_out_and_counted(
    configs: tuple[ModelConfig, SmallConfig],
) -> None:
    """The parts are a partition of the labelled rows."""
    made = inputs()
    dataset = make_dataset(made, configs[0])
    assert dataset.excluded == made.outcome.null_count > 0
    assert len(dataset) == len(made.outcome) - dataset.excluded
    assert (dataset.train.astype(int) + dataset.validate + dataset.report == 1).all()


def test_encoders_are_fitted_on_training_rows_alone(
    configs: tuple[ModelConfig, SmallConfig],
) -> None:
    """Mean and deviation of what is present before the split; `month` is unused."""
    made = inputs()
    dataset = make_dataset(made, configs[0])
    by_field = {encoder.field: encoder for encoder in dataset.encoders}
    assert "month" not in by_field
    assert by_field["origin"].values == ["EWR", "JFK", "LGA"]
    known = made.outcome.is_valid().to_numpy()
    temp = made.features["temp"].to_numpy()[known][dataset.train]
    assert by_field["temp"].mean == pytest.approx(np.nanmean(temp))
    assert by_field["temp"].deviation == pytest.approx(np.nanstd(temp))
    assert by_field["temp"].null_flag
    assert not by_field["is_weekend"].null_flag


def test_a_split_that_leaves_a_part_empty_is_refused(
    configs: tuple[ModelConfig, SmallConfig],
) -> None:
    """Nothing is trained on nothing."""
    config = configs[0]
    late = config.split.validate_until.replace(year=2014)
    split = msgspec.structs.replace(config.split, validate_until=late)
    with pytest.raises(MeshError, match="no row to report"):
        make_dataset(inputs(), msgspec.structs.replace(config, split=split))


def test_arrow_columns_keep_their_nulls() -> None:
    """Values, and which of them are there; in the encoding's order."""
    encoders = [
        ColumnEncoder(field="temp", kind="standard"),
        ColumnEncoder(field="origin", kind="category", values=["EWR"]),
        ColumnEncoder(field="hour_local", kind="standard"),
    ]
    table = pa.table({"hour_local": [1, None], "temp": [0.5, 1.5], "origin": ["EWR", None]})
    columns = to_columns(table, Encoding(encoders, FIELDS))
    assert columns.numbers.tolist() == [[1, 0], [0.5, 1.5]]
    assert columns.present is not None
    assert columns.present.tolist() == [[True, False], [True, True]]
    assert columns.texts == [["EWR", None]]
    whole = to_columns(table.slice(0, 1), Encoding(encoders, FIELDS))
    assert whole.present is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("surprise = 1\n", "surprise"),
        ('labels = ["late", "early"]\n', "other labels"),
        ("", None),
    ],
)
def test_a_configuration_is_typed(tmp_path: Path, change: str, reason: str | None) -> None:
    """An unknown key is refused by name."""
    text = (FLIGHTS / "model.toml").read_text()
    if change.startswith("labels"):
        text = text.replace('labels = ["late", "on_time"]\n', change)
    else:
        text = change + text
    (tmp_path / "model.toml").write_text(text)
    if reason is None:
        assert read_config(tmp_path / "model.toml").name == "delay"
        return
    with pytest.raises(MeshError, match=reason):
        read_config(tmp_path / "model.toml")
