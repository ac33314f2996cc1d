"""How much may be in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import MeshError
from contracts.policies import LimitsPolicy, LimitsSpec
from services.orchestrator.bounds import Bounds
from services.orchestrator.config import in_flight_bytes_max, in_flight_max


def limited(**specs: LimitsSpec) -> Bounds:
    """Bounds under limits policies; `every` stands for `*`."""
    bounds = Bounds()
    bounds.apply(
        LimitsPolicy(name="*" if name == "every" else name, spec=spec)
        for name, spec in specs.items()
    )
    return bounds


def overloaded(bounds: Bounds, model: str, tenant: str, rows: int, size: int = 0) -> str:
    """The message of the refusal, which can be retried."""
    with pytest.raises(MeshError) as caught:
        bounds.take(model, tenant, rows, size)
    assert caught.value.name == "OVERLOADED"
    assert caught.value.retry_after_ms
    return caught.value.message


def test_rows_of_a_model_at_the_default_limit_and_one_above() -> None:
    """4,096 rows fit, one more does not; another model has its own count."""
    bounds = Bounds()
    bounds.take("m", "t", 4_096, 0)
    assert "model m: 4096 rows in flight and 1 more, queue_rows_max is 4096" in overloaded(
        bounds, "m", "t", 1
    )
    bounds.take("other", "t", 1, 0)
    bounds.release("m", "t", 4_096, 0)
    bounds.take("m", "t", 1, 0)


def test_a_tenant_has_a_bound_only_where_a_policy_names_it() -> None:
    """The policy named after a tenant counts over all models."""
    bounds = limited(t=LimitsSpec(queue_rows_max=10, in_flight_max=2), every=LimitsSpec())
    bounds.take("a", "t", 5, 0)
    assert "tenant t: 5 rows" in overloaded(bounds, "b", "t", 6)
    bounds.take("b", "t", 5, 0)
    assert "tenant t" in overloaded(bounds, "b", "t", 0)
    bounds.take("b", "free", 100, 0)


def test_requests_of_a_model_are_bounded_where_its_policy_says() -> None:
    """`in_flight_max` of the star holds for each model."""
    bounds = limited(every=LimitsSpec(in_flight_max=1))
    bounds.take("a", "t", 1, 0)
    assert "in_flight_max is 1" in overloaded(bounds, "a", "t", 1)
    bounds.take("b", "t", 1, 0)


def test_bytes_and_requests_altogether_are_bounded() -> None:
    """At the limits and one above."""
    bounds = Bounds()
    bounds.take("m", "t", 1, in_flight_bytes_max)
    assert "in_flight_bytes_max" in overloaded(bounds, "m", "t", 1, 1)
    bounds = limited(every=LimitsSpec(queue_rows_max=10**6))
    for _ in range(in_flight_max):
        bounds.take("m", "t", 1, 0)
    assert f"in_flight_max is {in_flight_max}" in overloaded(bounds, "m", "t", 1)


@pytest.mark.interpreted
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("tu"), st.integers(1, 3_000))))
def test_what_was_taken_and_released_leaves_nothing(
    steps: list[tuple[str, str, int]],
) -> None:
    """Refused requests count nowhere; after the last release everything is as at the start."""
    bounds = limited(t=LimitsSpec(queue_rows_max=4_000))
    taken = []
    for model, tenant, rows in steps:
        try:
            bounds.take(model, tenant, rows, rows)
        except MeshError:
            continue
        taken.append((model, tenant, rows))
    assert bounds.requests == len(taken)
    for model, tenant, rows in taken:
        bounds.release(model, tenant, rows, rows)
    assert vars(bounds) == vars(limited(t=LimitsSpec(queue_rows_max=4_000)))
