"""The circuit breaker of one version, by a clock that the test turns."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.policies import BreakerSpec
from services.orchestrator.breaker import Breaker, State, Window, jitter_max
from services.orchestrator.config import breaker_window_s, breaker_windows_of_min

SPEC = BreakerSpec()


def breaker(**changes: object) -> Breaker:
    """A closed breaker with the built-in thresholds, but for these."""
    return Breaker(BreakerSpec(**changes), Random(7))


def fail(subject: Breaker, times: int, *, is_timeout: bool = False, tenant: str = "t") -> None:
    """So many failures at second 0."""
    for _ in range(times):
        subject.failed(0.0, tenant, is_timeout=is_timeout)


def opened(**changes: object) -> Breaker:
    """A breaker that five time-outs opened at second 0."""
    subject = breaker(**changes)
    fail(subject, SPEC.consecutive_timeouts, is_timeout=True)
    assert subject.state is State.OPEN
    return subject


def half_open(**changes: object) -> Breaker:
    """A breaker whose time is over and that nobody has probed for yet."""
    subject = opened(**changes)
    assert subject.admits(subject.reopens_s)
    assert subject.state is State.HALF_OPEN
    return subject


def test_five_time_outs_in_a_row_open_it() -> None:
    """The fifth does; a success between starts the count again."""
    subject = breaker()
    fail(subject, 4, is_timeout=True)
    subject.answered(0.0)
    fail(subject, 4, is_timeout=True)
    assert subject.state is State.CLOSED
    fail(subject, 1, is_timeout=True)
    assert subject.state is State.OPEN
    assert "5 time-outs" in subject.reason
    assert not subject.admits(0.0)


def test_failures_that_are_no_time_outs_do_not_count_as_them() -> None:
    """Nineteen errors are fewer than are needed to tell; the twentieth opens it."""
    subject = breaker()
    fail(subject, 19)
    assert subject.state is State.CLOSED
    fail(subject, 1)
    assert subject.state is State.OPEN
    assert subject.reason == "20 of the latest 20 requests failed"


def test_the_error_rate_is_that_of_the_latest_requests() -> None:
    """However long all went well, it is out once half of the latest hundred failed."""
    subject = breaker()
    subject.answered(0.0, 1_000_000)
    latest = SPEC.requests_min * breaker_windows_of_min
    for failures in range(1, latest // 2):
        subject.failed(0.0, "t", is_timeout=False)
        assert (subject.window.requests, subject.window.failures) == (latest, failures)
        assert subject.state is State.CLOSED
    subject.failed(0.0, "t", is_timeout=False)
    assert subject.reason == "50 of the latest 100 requests failed"


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.floats(0.0, 20.0)), max_size=60),
    st.integers(1, 60),
)
@settings(deadline=None)
def test_the_window_counts_exactly_the_latest_requests(
    ends: list[tuple[int, bool, float]], requests_max: int
) -> None:
    """As a list of all of them would; good ones before the first failure count as the last."""
    window = Window(requests_max)
    known: list[tuple[float, bool]] = []
    now_s = 0.0
    for requests, is_failure, wait_s in ends:
        now_s += wait_s
        if not any(failed for _, failed in known):
            known = [(now_s - (wait_s if is_failure else 0.0), False) for _ in known]
        window.add(now_s, requests, is_failure=is_failure)
        known = [*known, *[(now_s, is_failure)] * requests][-requests_max:]
        known = [(at_s, failed) for at_s, failed in known if now_s - at_s <= breaker_window_s]
        failures = sum(failed for _, failed in known)
        assert (window.requests, window.failures) == (len(known), failures)


def test_below_the_rate_it_stays_closed() -> None:
    """One failure in three is less than a half."""
    subject = breaker()
    for _ in range(300):
        subject.answered(0.0, 2, "t")
        subject.failed(0.0, "t", is_timeout=False)
    assert subject.state is State.CLOSED


def test_what_is_long_ago_does_not_count() -> None:
    """Nineteen failures of another minute and one of now are one failure."""
    subject = breaker()
    fail(subject, 19)
    subject.failed(breaker_window_s + 1.0, "t", is_timeout=False)
    assert (subject.window.requests, subject.state) == (1, State.CLOSED)


def test_one_tenant_alone_does_not_open_it_while_others_are_answered() -> None:
    """Its failures are those of what it sends; the same from two tenants are the version's."""
    subject = breaker()
    for _ in range(100):
        subject.answered(0.0, 1, "good")
        fail(subject, 9, tenant="poison")
    assert subject.state is State.CLOSED
    alone = breaker()
    fail(alone, 20, tenant="poison")
    assert alone.state is State.OPEN
    both = breaker()
    for tenant in ("a", "b") * 10:
        both.failed(0.0, tenant, is_timeout=False)
    assert both.state is State.OPEN


def test_it_opens_for_its_time_and_a_chance_more() -> None:
    """Between open_s and a quarter more; two of them not at the same moment."""
    times = {Breaker(SPEC, Random(seed)) for seed in range(20)}
    for subject in times:
        fail(subject, 5, is_timeout=True)
        assert SPEC.open_s <= subject.reopens_s <= SPEC.open_s * (1 + jitter_max)
        assert not subject.admits(subject.reopens_s - 0.001)
        assert subject.admits(subject.reopens_s)
    assert len({subject.reopens_s for subject in times}) == 20


def test_half_open_lets_only_its_probes_through() -> None:
    """Three at once; the fourth goes elsewhere."""
    subject = half_open()
    for _ in range(SPEC.probes):
        assert subject.admits(9.0)
        subject.take_probe()
    assert not subject.admits(9.0)


def test_the_probes_answers_close_it_and_nothing_is_remembered() -> None:
    """After them nineteen errors are again too few."""
    subject = half_open()
    for _ in range(SPEC.probes):
        subject.take_probe()
        assert subject.state is State.HALF_OPEN
        subject.probe_answered(9.0)
    assert subject.state is State.CLOSED
    fail(subject, 4, is_timeout=True)
    assert subject.state is State.CLOSED


def test_a_failed_probe_opens_it_again() -> None:
    """For another while from then on."""
    subject = half_open()
    subject.take_probe()
    subject.probe_failed(9.0)
    assert subject.state is State.OPEN
    assert subject.reopens_s >= 9.0 + SPEC.open_s
    assert subject.opened == 2


def test_a_probe_without_a_verdict_gives_its_place_to_another() -> None:
    """A caller that leaves cannot keep the breaker half-open for ever."""
    subject = half_open(probes=1)
    subject.take_probe()
    assert not subject.admits(9.0)
    subject.probe_unjudged()
    assert subject.admits(9.0)


def test_late_verdicts_of_requests_from_before_change_nothing() -> None:
    """Neither open nor half-open listens to requests that were no probes."""
    for subject in (opened(), half_open()):
        state = subject.state
        fail(subject, 100, is_timeout=True)
        subject.answered(0.0, 100)
        assert subject.state is state
    late = opened()
    late.probe_answered(0.0)
    late.probe_failed(0.0)
    late.probe_unjudged()
    assert (late.state, late.opened) == (State.OPEN, 1)


def test_what_another_process_left_open_is_open_but_not_for_ever() -> None:
    """A clock that was set back does not keep it open for longer than it opens for."""
    subject = breaker()
    subject.restore(100.0, 103.0, "why")
    assert (subject.state, subject.reopens_s, subject.reason) == (State.OPEN, 103.0, "why")
    subject.restore(100.0, 100_000.0, "why")
    assert subject.reopens_s == 100.0 + SPEC.open_s * (1 + jitter_max)
    assert subject.admits(subject.reopens_s)


def test_when_to_ask_again() -> None:
    """What is left until it reopens; while probes are out, the time it would open for."""
    subject = opened()
    assert subject.retry_after_s(1.0) == pytest.approx(subject.reopens_s - 1.0)
    assert half_open().retry_after_s(9.0) == SPEC.open_s


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("ask", "answer", "fail", "time-out", "leave", "wait")),
            st.floats(0.0, 10.0),
            st.sampled_from(("a", "b")),
        ),
        max_size=200,
    )
)
@settings(deadline=None)
def test_whatever_happens_probes_are_bounded_and_an_open_one_reopens(
    events: list[tuple[str, float, str]],
) -> None:
    """Never more probes than named, never a request before its time, and always a way back."""
    subject = breaker(requests_min=4, consecutive_timeouts=2, probes=2)
    now_s, probes = 0.0, 0
    for event, wait_s, tenant in events:
        if event == "wait":
            now_s += wait_s
        elif event == "ask":
            before = subject.state
            if subject.admits(now_s):
                assert before is not State.OPEN or now_s >= subject.reopens_s
                if subject.state is State.HALF_OPEN:
                    subject.take_probe()
                    probes = probes + 1 if before is State.HALF_OPEN else 1
                    assert probes <= 2
        elif subject.state is State.HALF_OPEN and probes:
            probes -= 1
            if event == "answer":
                subject.probe_answered(now_s)
                probes += subject.state is State.HALF_OPEN  # its place stays taken
            elif event == "leave":
                subject.probe_unjudged()
            else:
                subject.probe_failed(now_s)
        elif event == "answer":
            subject.answered(now_s, 1, tenant)
        elif event != "leave":
            subject.failed(now_s, tenant, is_timeout=event == "time-out")
        assert 0 <= subject.window.failures <= subject.window.requests
    assert subject.state is not State.OPEN or subject.admits(subject.reopens_s)
