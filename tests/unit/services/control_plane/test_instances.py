"""The table of instances: who is required, who is stale, who took whose place."""

from typing import Any

from contracts.distribution import Acknowledge, Position, Report, Subscribe
from contracts.limits import stale_after_s
from contracts.types import UNSET
from services.control_plane.instances import Instances, forget_after_s, instances_max

HERE = Position(epoch=1, sequence=3, hash="sha256:" + "a" * 64)


def report(instance: str, role: str = "active", **fields: Any) -> Report:
    """A heartbeat."""
    service, _, rest = instance.partition(".")
    return Report(
        service=service,  # type: ignore[arg-type]
        instance=instance,
        index=int(rest.partition("-")[0]),
        role=role,  # type: ignore[arg-type]
        ready=True,
        infra="sha256:" + "0" * 64,
        **fields,
    )


def subscribe(instance: str, position: Any = UNSET) -> Subscribe:
    """A subscription."""
    service = instance.partition(".")[0]
    return Subscribe(service=service, instance=instance, position=position)  # type: ignore[arg-type]


def test_required_are_fresh_and_active() -> None:
    """A heartbeat up to 2 s old counts; a standby never does."""
    table = Instances()
    table.reported(report("model_runtime.0-a"), 100.0)
    table.reported(report("model_runtime.0-s", role="standby"), 100.0)
    table.subscribed(subscribe("orchestrator.0-x"))
    assert table.required(100.0 + stale_after_s) == {"model_runtime.0-a"}
    assert table.required(100.0 + stale_after_s + 0.001) == set()


def test_a_standby_that_is_promoted_becomes_required() -> None:
    """Its next report says so."""
    table = Instances()
    table.reported(report("data_fabric.0-s", role="standby"), 100.0)
    table.reported(report("data_fabric.0-s"), 100.5)
    assert table.required(101.0) == {"data_fabric.0-s"}


def test_a_successor_takes_the_place_of_one_that_is_gone() -> None:
    """After a crash the dead instance is required no longer once its successor reports."""
    table = Instances()
    for name in ("model_runtime.0-a", "model_runtime.1-b"):
        table.subscribed(subscribe(name))
        table.reported(report(name), 100.0)
    table.left("model_runtime.0-a")
    assert table.required(100.1) == {"model_runtime.0-a", "model_runtime.1-b"}
    table.reported(report("model_runtime.0-c"), 100.2)
    assert table.required(100.2) == {"model_runtime.0-c", "model_runtime.1-b"}


def test_one_that_said_goodbye_is_required_no_longer() -> None:
    """A replica that is removed as planned: nobody waits for it, whatever ends first, and a
    successor in its place is required as any."""
    table = Instances()
    for name in ("model_runtime.0-a", "model_runtime.1-b"):
        table.subscribed(subscribe(name))
        table.reported(report(name), 100.0)
    table.reported(report("model_runtime.1-b", leaving=True), 100.1)
    assert table.required(100.1) == {"model_runtime.0-a"}
    table.left("model_runtime.1-b")
    assert table.required(100.2) == {"model_runtime.0-a"}
    assert len(table.rows(100.2)) == 1
    table.reported(report("model_runtime.1-c"), 100.3)
    assert table.required(100.3) == {"model_runtime.0-a", "model_runtime.1-c"}


def test_a_predecessor_that_still_serves_stays_required() -> None:
    """In a planned replacement both live for a while, and both need the new version."""
    table = Instances()
    for name in ("orchestrator.0-a", "orchestrator.0-b"):
        table.subscribed(subscribe(name))
        table.reported(report(name), 100.0)
    assert table.required(100.0) == {"orchestrator.0-a", "orchestrator.0-b"}


def test_rows_say_what_was_received_checked_and_active() -> None:
    """`status` follows a push step by step."""
    table = Instances()
    name = "orchestrator.0-a"
    table.subscribed(subscribe(name))
    assert table.rows(100.0) == []
    table.reported(report(name), 100.0)
    table.sent(name, HERE)
    assert _progress(table) == (3, 0, 0)
    table.acknowledged(Acknowledge(instance=name, position=HERE, state="valid"))
    assert _progress(table) == (3, 3, 0)
    table.acknowledged(Acknowledge(instance=name, position=HERE, state="active"))
    assert _progress(table) == (3, 3, 3)
    stale = table.rows(103.0)[0]
    assert (stale.stale, stale.report_age_s) == (True, 3.0)


def _progress(table: Instances) -> tuple[int, int, int]:
    row = table.rows(100.0)[0]
    return row.received, row.valid, row.active


def test_an_invalid_answer_moves_nothing() -> None:
    """An instance that refused has neither checked nor activated the set."""
    table = Instances()
    table.reported(report("orchestrator.0-a"), 100.0)
    table.acknowledged(
        Acknowledge(instance="orchestrator.0-a", position=HERE, state="invalid", reason="no")
    )
    table.acknowledged(Acknowledge(instance="nobody", position=HERE, state="active"))
    assert _progress(table) == (0, 0, 0)


def test_a_position_in_subscription_or_report_counts_as_active() -> None:
    """What an instance has on disk is active there, also after our restart."""
    table = Instances()
    table.subscribed(subscribe("orchestrator.0-a", HERE))
    table.reported(report("orchestrator.0-a"), 100.0)
    table.reported(report("data_fabric.0-a", position=HERE), 100.0)
    assert [row.active for row in table.rows(100.0)] == [3, 3]


def test_serving_is_by_service() -> None:
    """Only a service's fresh active instances serve."""
    table = Instances()
    table.reported(report("model_runtime.0-a"), 100.0)
    table.reported(report("model_runtime.1-b"), 97.0)
    table.reported(report("data_fabric.0-c"), 100.0)
    assert [one.instance for one in table.serving("model_runtime", 100.0)] == ["model_runtime.0-a"]


def test_the_silent_are_forgotten() -> None:
    """A gone instance leaves the table after a minute; a connected one does not."""
    table = Instances()
    table.subscribed(subscribe("orchestrator.0-a"))
    table.reported(report("orchestrator.0-a"), 100.0)
    table.reported(report("data_fabric.0-b"), 100.0)
    table.reported(report("model_runtime.0-c"), 100.0 + forget_after_s + 1)
    assert set(table.by_name) == {"orchestrator.0-a", "model_runtime.0-c"}


def test_the_table_is_bounded() -> None:
    """With one instance too many the one unheard for longest without connection goes."""
    table = Instances()
    table.subscribed(subscribe("orchestrator.0-first"))
    for number in range(instances_max):
        table.reported(report(f"model_runtime.{number}-a"), 100.0 + number / 1_000)
    assert len(table.by_name) == instances_max
    assert "orchestrator.0-first" in table.by_name
    assert "model_runtime.0-a" not in table.by_name
