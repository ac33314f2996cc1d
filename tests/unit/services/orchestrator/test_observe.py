"""What the orchestrator counts."""

from contracts.errors import MeshError
from contracts.service import Metric
from contracts.stages import BUDGET_MS, STAGES
from services.orchestrator.observe import Observed, kept_max
from shared.deadline import exceeded
from tests.unit.services.orchestrator.making import plan_for

PLAN = plan_for()


def series(metrics: list[Metric], name: str) -> dict[tuple[str, ...], float]:
    """Values by labels; of a histogram how many were counted."""
    (family,) = [row for row in metrics if row.name == name]
    return {
        tuple(row.labels): sum(row.counts) if row.counts else row.value for row in family.series
    }


def test_answers_are_counted_by_status_and_stage() -> None:
    """Stages without time are left out."""
    observed = Observed()
    for _ in range(3):
        observed.answered(PLAN, 128, 10, 0, 7)
    observed.computed(PLAN, 3, 3, [5, 5, 0, 100, 1])
    observed.ended(PLAN, "FORWARD_FAILED")
    observed.refused(None, "MODEL_UNKNOWN", 1e-4)
    metrics = observed.collect()
    assert series(metrics, "ai_request_total") == {
        ("tiny", "1", "ok"): 3,
        ("tiny", "1", "FORWARD_FAILED"): 1,
        ("unknown", "-", "MODEL_UNKNOWN"): 1,
    }
    counted = {key[2]: value for key, value in series(metrics, "ai_stage_seconds").items()}
    expected = dict.fromkeys(STAGES, 3) | {"features": 0, "tokenize": 0}
    assert counted == expected
    assert series(metrics, "ai_request_seconds") == {("tiny", "1"): 3}
    assert series(metrics, "ai_batch_rows") == {("tiny", "1"): 1}


def test_a_stage_over_its_budget_is_counted_under_its_name() -> None:
    """At the share nothing, one microsecond above it each."""
    observed = Observed()
    queue_us, forward_us = BUDGET_MS["queue"] * 1_000, BUDGET_MS["forward"] * 1_000
    observed.answered(PLAN, queue_us + 1, queue_us, 0, 1)
    for _ in range(4):
        observed.answered(PLAN, queue_us + forward_us + 3, queue_us + 1, 0, 1)
    observed.computed(PLAN, 4, 4, [0, 0, 0, forward_us + 1, 0])
    observed.computed(PLAN, 1, 1, [0, 0, 0, forward_us, 0])
    overspent = series(observed.collect(), "ai_budget_exceeded_total")
    assert overspent["tiny", "1", "queue"] == 4
    assert overspent["tiny", "1", "forward"] == 4
    assert overspent["tiny", "1", "reply"] == 0


def test_a_passed_deadline_is_counted_under_its_stage_and_service() -> None:
    """Whoever found it; the instance is in the error, the metric's labels are a closed set."""
    observed = Observed()
    for hop in ("model_runtime.0-0123abcd", "model_runtime"):
        observed.exceeded(exceeded("late", "batch", hop))
    observed.exceeded(MeshError("DEADLINE_EXCEEDED", "a peer that does not say where"))
    assert series(observed.collect(), "ai_deadline_exceeded_total") == {
        ("batch", "model_runtime"): 2,
        ("unknown", "unknown"): 1,
    }


def test_kept_answers_are_bounded() -> None:
    """They are folded into the series before anybody asks."""
    observed = Observed()
    for _ in range(kept_max + 1):
        observed.answered(PLAN, 8, 1, 1, 1)
    assert len(observed._of(PLAN).totals_us) == 1


def test_a_version_that_left_keeps_its_series() -> None:
    """Counters never go back; its handles are let go."""
    observed = Observed()
    observed.answered(PLAN, 8, 1, 1, 1)
    observed.forget(keep=set())
    assert series(observed.collect(), "ai_request_total") == {("tiny", "1", "ok"): 1}
    assert observed._handles == {}


def test_answers_from_features_are_fresh_or_stale() -> None:
    """By the view's own limit, as the answer is marked."""
    observed = Observed()
    observed.featured(PLAN, is_stale=False)
    observed.featured(PLAN, is_stale=False)
    observed.featured(PLAN, is_stale=True)
    assert series(observed.collect(), "ai_feature_answers_total") == {
        ("tiny", "1", "fresh"): 2,
        ("tiny", "1", "stale"): 1,
    }
