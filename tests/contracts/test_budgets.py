"""Budgets: what is promised for the parts sums to no more than what is promised for the whole."""

import pytest

from contracts.methods import METHODS
from contracts.policies import SlaSpec
from contracts.stages import BUDGET_MS, INFER_P99_MS, STAGES

HOPS = {("data_fabric", "features_batch"), ("model_runtime", "execute")}
"""What an `infer` calls, one after the other."""
OWN_STAGES = ("queue", "batch", "reply")
"""What the orchestrator itself spends."""


def test_every_stage_has_a_share_and_the_shares_fit_the_whole() -> None:
    """The stages' shares sum to no more than the default promise of `infer`."""
    assert tuple(BUDGET_MS) == STAGES
    assert all(share_ms > 0 for share_ms in BUDGET_MS.values())
    assert sum(BUDGET_MS.values()) <= INFER_P99_MS


def test_the_hops_of_an_infer_fit_its_budget() -> None:
    """p99 of each method that an `infer` calls, and the stages between, within its own p99."""
    hops_ms = sum(METHODS[service][method].budget.p99_ms for service, method in HOPS)
    own_ms = sum(BUDGET_MS[stage] for stage in OWN_STAGES)
    assert hops_ms + own_ms <= METHODS["orchestrator"]["infer"].budget.p99_ms


@pytest.mark.parametrize("service", METHODS)
def test_a_promise_ends_before_its_time_out(service: str) -> None:
    """p99 ≤ time-out for each method, and no hop of an `infer` may outlast the `infer`."""
    longest_ms = METHODS["orchestrator"]["infer"].budget.timeout_ms
    for name, row in METHODS[service].items():
        assert row.budget.p99_ms <= row.budget.timeout_ms
        assert (service, name) not in HOPS or row.budget.timeout_ms <= longest_ms


def test_the_default_sla_fits_its_own_stages() -> None:
    """The built-in `sla` policy: the whole is that of `infer`, its stages fit in."""
    spec = SlaSpec()
    assert spec.p99_ms == INFER_P99_MS
    assert sum(spec.stages.values()) <= spec.p99_ms
    assert all(limit_ms <= BUDGET_MS[stage] for stage, limit_ms in spec.stages.items())
