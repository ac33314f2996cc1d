"""Counts out of the orchestrator's metrics."""

from contracts.errors import MeshError
from contracts.service import Metrics
from services.orchestrator.observe import Observed
from shared.deadline import exceeded
from supervisor.sla_counters import Differences, instances_max, more, totals_of
from supervisor.sla_windows import MESH
from tests.unit.services.orchestrator.making import plan_for

PLAN = plan_for()


def answer(observed: Observed, instance: str = "orchestrator.0-a") -> Metrics:
    """As the process answers `metrics`."""
    return Metrics(metrics=observed.collect(), instance=instance)


def test_every_metric_that_an_sla_needs_is_read() -> None:
    """From the very families that the orchestrator has."""
    observed = Observed()
    observed.answered(PLAN, 120_000, 30_000, 0, 7)
    observed.computed(PLAN, 1, 1, [5, 5, 0, 80_000, 1])
    observed.ended(PLAN, "FORWARD_FAILED")
    observed.refused("tiny", "OVERLOADED", 1e-4)
    observed.refused(None, "MODEL_UNKNOWN", 1e-4)
    observed.featured(PLAN, is_stale=True)
    observed.fell_back("big", PLAN)
    observed.exceeded(exceeded("late", "queue", "model_runtime.0-x"))
    found = totals_of(observed.collect())
    tiny = found["tiny"]
    assert tiny["end ok"] == tiny["end FORWARD_FAILED"] == tiny["end OVERLOADED"] == 1
    assert tiny["time 0.15"] == tiny["stage forward 0.1"] == tiny["features stale"] == 1
    assert {name: n for name, n in tiny.items() if name.startswith("over")} == {
        "over queue": 1,
        "over forward": 1,
    }
    assert found["big"] == {"fallback": 1}
    assert found[MESH] == {"late queue model_runtime": 1}
    assert "unknown" not in found, "nobody promised anything about it"


def test_only_what_came_on_top_is_counted() -> None:
    """Of one process; the second look without requests finds nothing."""
    observed, differences = Observed(), Differences()
    observed.answered(PLAN, 2_000, 0, 0, 0)
    assert differences.take(answer(observed)) == {"tiny": {"end ok": 1, "time 0.0025": 1}}
    assert differences.take(answer(observed)) == {}
    observed.ended(PLAN, "UNAVAILABLE")
    assert differences.take(answer(observed)) == {"tiny": {"end UNAVAILABLE": 1}}


def test_a_new_process_counts_from_zero() -> None:
    """Also when it has counted more by now than the one before; and a late answer of that one
    counts only what is new in it."""
    first, second, differences = Observed(), Observed(), Differences()
    first.ended(PLAN, "INTERNAL")
    differences.take(answer(first))
    for _ in range(3):
        second.ended(PLAN, "INTERNAL")
    found = differences.take(answer(second, "orchestrator.0-b"))
    assert found == {"tiny": {"end INTERNAL": 3}}
    first.ended(PLAN, "INTERNAL")
    assert differences.take(answer(first)) == {"tiny": {"end INTERNAL": 1}}


def test_a_total_that_fell_counts_whole() -> None:
    """A peer that does not say which process it is may have begun anew."""
    assert more({"end ok": 2, "end INTERNAL": 5}, {"end ok": 9, "end INTERNAL": 4}) == {
        "end ok": 2,
        "end INTERNAL": 1,
    }


def test_few_processes_are_remembered() -> None:
    """The one that was asked longest ago is forgotten; it would count again."""
    observed, differences = Observed(), Differences()
    observed.ended(PLAN, MeshError("INTERNAL", "x").name)
    for index in range(instances_max + 1):
        differences.take(answer(observed, f"orchestrator.0-{index}"))
    assert differences.take(answer(observed, f"orchestrator.0-{instances_max}")) == {}
    assert differences.take(answer(observed, "orchestrator.0-0")) == {"tiny": {"end INTERNAL": 1}}
