"""The Prometheus text of several processes."""

from prometheus_client.parser import text_string_to_metric_families

from contracts.service import Metric, Series
from supervisor.exposition import exposition


def metric(kind: str, name: str = "ai_x", **fields: object) -> Metric:
    """A family with one label."""
    base = {"name": name, "kind": kind, "help": "X", "labels": ["status"], "series": []}
    return Metric(**{**base, **fields})  # type: ignore[arg-type]


def test_processes_stay_apart_under_one_name() -> None:
    """The same family of two processes becomes one, told apart by service and replica."""
    total = metric("counter", "ai_x_total", series=[Series(labels=["ok"], value=2)])
    text = exposition([("orchestrator", 0, [total]), ("model_runtime", 1, [total])]).decode()
    families = list(text_string_to_metric_families(text))
    assert [family.name for family in families] == ["ai_x"]
    assert [sample.labels for sample in families[0].samples] == [
        {"status": "ok", "service": "orchestrator", "replica": "0"},
        {"status": "ok", "service": "model_runtime", "replica": "1"},
    ]


def test_a_histogram_is_cumulative() -> None:
    """Counts per bucket become counts up to each bound, with +Inf, count and sum."""
    series = Series(labels=["ok"], value=7.5, counts=[1, 2, 3])
    spread = metric("histogram", buckets=[0.1, 1.0], series=[series])
    text = exposition([("orchestrator", 0, [spread])]).decode()
    samples = next(iter(text_string_to_metric_families(text))).samples
    buckets = {s.labels["le"]: s.value for s in samples if s.name == "ai_x_bucket"}
    assert buckets == {"0.1": 1, "1": 3, "+Inf": 6}
    assert [s.value for s in samples if s.name == "ai_x_count"] == [6]
    assert [s.value for s in samples if s.name == "ai_x_sum"] == [7.5]


def test_a_family_of_another_kind_is_left_out() -> None:
    """Two processes that disagree on a kind do not spoil the text."""
    gauge = metric("gauge", series=[Series(labels=["ok"], value=1)])
    spread = metric(
        "histogram", buckets=[1.0], series=[Series(labels=["ok"], value=1, counts=[1, 0])]
    )
    text = exposition([("orchestrator", 0, [gauge]), ("data_fabric", 0, [spread])]).decode()
    assert "ai_x_bucket" not in text


def test_a_label_of_ours_does_not_hide_one_of_theirs() -> None:
    """A metric that has a label `service` itself keeps it under another name."""
    gauge = metric("gauge", labels=["service"], series=[Series(labels=["fabric"], value=1)])
    text = exposition([("control_plane", 0, [gauge])]).decode()
    labels = next(iter(text_string_to_metric_families(text))).samples[0].labels
    assert labels == {"exported_service": "fabric", "service": "control_plane", "replica": "0"}


def test_hostile_label_values_are_escaped() -> None:
    """A model named like exposition text stays a label value."""
    name = 'a"} 1\nfake 2'
    gauge = metric("gauge", series=[Series(labels=[name], value=1)])
    families = list(
        text_string_to_metric_families(exposition([("orchestrator", 0, [gauge])]).decode())
    )
    assert [family.name for family in families] == ["ai_x"]
    assert families[0].samples[0].labels["status"] == name
