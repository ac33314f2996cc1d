"""Steps of a start beside their budgets."""

import pytest

from supervisor.startup import BUDGETS_S, TEMPLATE, TEMPLATE_IMPORT_S, in_words, steps_of


@pytest.mark.parametrize("step", sorted(BUDGETS_S))
def test_a_step_is_within_its_budget_up_to_it(step: str) -> None:
    """At the budget it is kept, a millisecond later it is not."""
    budget_s = BUDGETS_S[step]
    kept, over = (
        steps_of("model_runtime 0", {step: seconds})[0] for seconds in (budget_s, budget_s + 0.001)
    )
    assert (kept.budget_s, kept.is_within) == (budget_s, True)
    assert (over.budget_s, over.is_within) == (budget_s, False)


def test_the_template_may_import_longer() -> None:
    """It imports the backend, once for every runtime."""
    assert BUDGETS_S["import"] < TEMPLATE_IMPORT_S
    assert steps_of(TEMPLATE, {"import": TEMPLATE_IMPORT_S})[0].is_within
    assert not steps_of("orchestrator 0", {"import": TEMPLATE_IMPORT_S})[0].is_within


def test_steps_are_told_in_order_with_their_budgets() -> None:
    """What a start prints of a process; a step without a budget stands alone."""
    steps = steps_of("model_runtime 0", {"fork": 0.02, "map": 0.3, "tea": 1.0})
    assert in_words(steps) == "fork 0.020 of 0.05, map 0.300 OVER 0.25, tea 1.000"
