"""What was promised, and whether it was kept."""

import re
from pathlib import Path

import msgspec
import pytest

from contracts.errors import CALLERS_OWN, ERRORS
from contracts.policies import (
    ModelPolicy,
    ModelSpec,
    Policy,
    PolicySet,
    PublishedVersion,
    RoutePolicy,
    RouteSpec,
    SlaPolicy,
    SlaSpec,
)
from supervisor.sla_verdicts import Promise, Row, judge, promised, quantile, routed_digest
from supervisor.sla_windows import Counts

DIGEST = "sha256:" + "1" * 64


def judged(counts: Counts, **spec: float) -> Row:
    """One row."""
    return judge("tiny", "5m", 0.0, counts, msgspec.convert(spec, SlaSpec))


def promise(row: Row, name: str) -> Promise:
    """One promise of a row."""
    return next(one for one in row.promises if one.name == name)


def test_without_requests_nothing_is_missed() -> None:
    """Nor kept; the budget is whole."""
    row = judged({})
    assert (row.requests, row.missed, row.budget_left, row.p50) == (0, [], 1.0, None)
    assert [one.kept for one in row.promises] == [None, None, None]
    assert [one.name for one in row.promises] == ["availability", "p99", "tokenize p95"]


@pytest.mark.parametrize(("failed", "is_kept", "left"), [(1, True, 0.0), (2, False, -1.0)])
def test_availability_at_its_target_is_kept(failed: int, is_kept: bool, left: float) -> None:
    """One failure in ten of 0.9 uses the budget up; one more overspends it by a whole one."""
    row = judged({"end ok": 10 - failed, "end OVERLOADED": failed}, availability=0.9)
    assert promise(row, "availability").kept is is_kept
    assert row.missed == ([] if is_kept else ["availability"])
    assert row.budget_left == pytest.approx(left)
    assert row.errors == {"OVERLOADED": failed}


def test_an_availability_of_one_has_no_budget() -> None:
    """Every failure misses it."""
    assert judged({"end ok": 5}, availability=1.0).budget_left is None
    row = judged({"end ok": 5, "end INTERNAL": 1}, availability=1.0)
    assert (row.missed, row.budget_left) == (["availability"], None)


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_counts_or_is_the_callers_own(name: str) -> None:
    """Refused for the load, late and failed requests count; what the caller asked wrongly for does
    not, and neither does what its tenant's limits say."""
    row = judged({f"end {name}": 3})
    assert (row.requests, row.callers_own) == ((0, 3) if name in CALLERS_OWN else (3, 0))
    counted = {"OVERLOADED", "DEADLINE_EXCEEDED", "UNAVAILABLE", "FEATURE_STALE", "MODEL_NOT_READY"}
    assert not counted & CALLERS_OWN


def test_the_page_names_the_callers_own_errors() -> None:
    """Every one, where an operator reads what counts."""
    page = (Path(__file__).parents[3] / "docs" / "operating.md").read_text()
    line = next(line for line in page.splitlines() if line.startswith("| `requests` |"))
    named = line.partition("which are ")[2].partition(" (`callers_own`")[0]
    assert set(re.split(", | and ", named)) == CALLERS_OWN


def test_an_error_of_a_newer_orchestrator_counts() -> None:
    """Its name is not known here: it is not taken for the caller's."""
    assert judged({"end BRAND_NEW": 1}).missed == ["availability"]


def test_times_are_interpolated_in_their_bucket() -> None:
    """Ninety-nine at most 100 ms, one up to 250: the rank of the p99 is the last of the first."""
    found = quantile({0.1: 99, 0.25: 1}, 0.99)
    assert found is not None
    assert (found.ms, found.low_ms, found.high_ms) == (100.0, 50.0, 100.0)
    found = quantile({0.1: 50, 0.25: 50}, 0.75)
    assert found is not None
    assert (found.ms, found.low_ms, found.high_ms) == (200.0, 150.0, 250.0)
    assert quantile({}, 0.99) is None


def test_a_p99_over_its_target_is_missed() -> None:
    """249 ms: of 248.9, and not of 249."""
    counts = {"end ok": 100, "time 0.25": 100}
    assert judged(counts, p99_ms=249.0).missed == []
    assert judged(counts, p99_ms=248.9).missed == ["p99"]


def test_a_time_beyond_the_last_bucket_is_missed() -> None:
    """Nothing shows that it was kept; the bound is what is known."""
    row = judged({"end ok": 1, "time inf": 1}, p99_ms=60_000.0)
    found = promise(row, "p99")
    assert (found.kept, found.value) == (False, 5_000.0)
    assert found.bucket is not None
    assert found.bucket.high_ms is None


def test_a_stage_is_judged_by_its_p95() -> None:
    """The stages that the policy names."""
    row = judged({"end ok": 20, "stage tokenize 0.025": 20, "stage forward 5": 20})
    assert row.missed == ["tokenize p95"]


@pytest.mark.parametrize(("stale", "missed"), [(1, []), (2, ["freshness"])])
def test_ninety_nine_answers_in_a_hundred_are_fresh(stale: int, missed: list[str]) -> None:
    """Of those from features; a model without any has no such promise."""
    counts = {"end ok": 100, "features fresh": 100 - stale, "features stale": stale}
    assert judged(counts).missed == missed


def test_budgets_and_fallbacks_are_told_beside() -> None:
    """They are no promise of their own."""
    row = judged({"end ok": 1, "over queue": 4, "fallback": 3})
    assert (row.over_budget, row.fallbacks, row.missed) == ({"queue": 4}, 3, [])


def test_the_models_own_policy_goes_first_then_its_contract_then_everybodys() -> None:
    """And without any the built-in one."""
    everybody, own = SlaSpec(p99_ms=300.0, availability=0.9), SlaSpec(p99_ms=20.0)
    rows: list[Policy] = [SlaPolicy(name="*", spec=everybody), SlaPolicy(name="own", spec=own)]
    policies = PolicySet(version=1, policies=rows)
    assert promised(policies, "own", 70.0) == own
    assert promised(policies, "tiny", None) == everybody
    contracted = promised(policies, "tiny", 70.0)
    assert (contracted.p99_ms, contracted.availability) == (70.0, 0.9)
    assert promised(PolicySet(version=0, policies=[]), "tiny", None) == SlaSpec()


def test_the_contract_is_that_of_the_version_routed_to() -> None:
    """None where nothing is routed or published."""
    published = [PublishedVersion(version="1", digest="sha256:" + "0" * 64)]
    published.append(PublishedVersion(version="2", digest=DIGEST))
    model = ModelPolicy(name="tiny", spec=ModelSpec(versions=published))
    route = RoutePolicy(name="tiny", spec=RouteSpec(default="2"))
    assert routed_digest(PolicySet(version=1, policies=[model, route]), "tiny") == DIGEST
    assert routed_digest(PolicySet(version=1, policies=[route]), "tiny") is None
    assert routed_digest(PolicySet(version=1, policies=[model]), "tiny") is None
