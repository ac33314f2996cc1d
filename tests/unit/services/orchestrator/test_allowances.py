"""Rates and daily quotas, with a manual clock."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import REASONS, MeshError
from contracts.policies import LimitsPolicy, LimitsSpec
from services.orchestrator.allowances import DAY_S, Allowances
from services.orchestrator.quota_file import QuotaFile

NOON_S = 20_000.5 * DAY_S


def allowed(**specs: LimitsSpec) -> Allowances:
    """Allowances under limits policies; `every` stands for `*`."""
    allowances = Allowances()
    allowances.apply(
        [
            LimitsPolicy(name="*" if name == "every" else name, spec=spec)
            for name, spec in specs.items()
        ]
    )
    return allowances


def exceeded(allowances: Allowances, *arguments: Any) -> MeshError:
    """The refusal of this request."""
    with pytest.raises(MeshError) as caught:
        allowances.take(*arguments)
    error = caught.value
    assert error.name == "QUOTA_EXCEEDED"
    assert error.details is not None
    assert error.details["reason"] in REASONS
    assert error.retry_after_ms
    return error


def test_without_a_rate_or_a_quota_nothing_needs_to_be_asked() -> None:
    """Other limits policies do not switch it on."""
    assert not allowed(every=LimitsSpec(in_flight_max=4)).is_needed
    assert allowed(every=LimitsSpec(requests_per_s=4)).is_needed
    assert allowed(t=LimitsSpec(tokens_per_day=4)).is_needed


def test_a_burst_passes_then_the_rate() -> None:
    """Three at once, the fourth is told when; at that moment it passes."""
    allowances = allowed(t=LimitsSpec(requests_per_s=10.0, burst=3))
    for _ in range(3):
        allowances.take("m", "t", 1, 100.0, NOON_S)
    error = exceeded(allowances, "m", "t", 1, 100.0, NOON_S)
    assert error.retry_after_ms == 100
    assert "tenant t: requests_per_s is 10 with a burst of 3" in error.message
    allowances.take("m", "t", 1, 100.1, NOON_S)
    allowances.take("m", "other", 1, 100.0, NOON_S)


def test_the_star_gives_each_model_a_bucket_of_its_own() -> None:
    """And a policy of its own replaces it."""
    allowances = allowed(every=LimitsSpec(requests_per_s=0.5), big=LimitsSpec(requests_per_s=9.0))
    allowances.take("a", "t", 1, 100.0, NOON_S)
    allowances.take("b", "t", 1, 100.0, NOON_S)
    assert exceeded(allowances, "a", "t", 1, 100.0, NOON_S).retry_after_ms == 2_000
    for _ in range(9):
        allowances.take("big", "t", 1, 100.0, NOON_S)
    exceeded(allowances, "big", "t", 1, 100.0, NOON_S)


def test_a_request_refused_for_its_tenant_takes_nothing_from_its_model() -> None:
    """The model's bucket still holds what it held."""
    allowances = allowed(
        m=LimitsSpec(requests_per_s=1.0, burst=2), t=LimitsSpec(requests_per_s=1.0, burst=1)
    )
    allowances.take("m", "t", 1, 100.0, NOON_S)
    exceeded(allowances, "m", "t", 1, 100.0, NOON_S)
    allowances.take("m", "free", 1, 100.0, NOON_S)


def test_a_policy_that_stays_keeps_its_bucket_a_new_one_is_full() -> None:
    """Committing something else does not hand out a burst."""
    spec = LimitsSpec(requests_per_s=1.0, burst=1)
    allowances = allowed(t=spec)
    allowances.take("m", "t", 1, 100.0, NOON_S)
    allowances.apply([LimitsPolicy(name="t", spec=spec)])
    exceeded(allowances, "m", "t", 1, 100.0, NOON_S)
    allowances.apply([LimitsPolicy(name="t", spec=LimitsSpec(requests_per_s=2.0, burst=1))])
    allowances.take("m", "t", 1, 100.0, NOON_S)


@given(
    st.floats(0.5, 500.0),
    st.integers(1, 50),
    st.lists(st.floats(0.0, 0.2), min_size=1, max_size=200),
)
def test_no_more_than_the_burst_and_the_rate_ever_pass(
    rate: float, burst: int, pauses: list[float]
) -> None:
    """Whatever the arrivals, over every stretch of time that ends now."""
    allowances = allowed(t=LimitsSpec(requests_per_s=rate, burst=burst))
    now_s, passed_s = 100.0, []
    for pause_s in pauses:
        now_s += pause_s
        try:
            allowances.take("m", "t", 1, now_s, NOON_S)
        except MeshError:
            continue
        passed_s.append(now_s)
        for index, begin_s in enumerate(passed_s):
            assert len(passed_s) - index <= burst + rate * (now_s - begin_s) + 1e-6


def test_a_daily_quota_counts_rows_and_begins_anew_at_midnight_utc() -> None:
    """Ten rows a day: at the limit, one above, and the hint is the rest of the day."""
    allowances = allowed(t=LimitsSpec(tokens_per_day=10))
    allowances.take("m", "t", 10, 100.0, NOON_S)
    error = exceeded(allowances, "m", "t", 1, 100.0, NOON_S)
    assert error.retry_after_ms == DAY_S * 500
    assert "10 tokens or rows used today (UTC) and 1 more, tokens_per_day is 10" in error.message
    allowances.take("m", "t", 10, 100.0, NOON_S + DAY_S / 2)


def test_rows_that_got_no_answer_are_given_back() -> None:
    """A failed request uses nothing of the quota."""
    allowances = allowed(t=LimitsSpec(tokens_per_day=10))
    allowances.take("m", "t", 10, 100.0, NOON_S)
    allowances.give_back("m", "t", 10, NOON_S)
    allowances.take("m", "t", 10, 100.0, NOON_S)


def test_what_was_used_survives_a_restart_within_the_day(tmp_path: Path) -> None:
    """The next process counts on; a file of yesterday counts for nothing."""
    before, after = (allowed(t=LimitsSpec(tokens_per_day=10)) for _ in range(2))
    before.take("m", "t", 7, 100.0, NOON_S)
    QuotaFile(tmp_path / "quota.msgpack", before).write()
    QuotaFile(tmp_path / "quota.msgpack", after).read()
    exceeded(after, "m", "t", 4, 100.0, NOON_S)
    after.take("m", "t", 3, 100.0, NOON_S)
    after.take("m", "t", 10, 100.0, NOON_S + DAY_S)


def test_a_broken_file_counts_as_none(tmp_path: Path) -> None:
    """Bytes that are no such file neither stop the start nor refuse anybody."""
    path = tmp_path / "quota.msgpack"
    path.write_bytes(b"\xc1broken")
    allowances = allowed(t=LimitsSpec(tokens_per_day=10))
    QuotaFile(path, allowances).read()
    allowances.take("m", "t", 10, 100.0, NOON_S)
