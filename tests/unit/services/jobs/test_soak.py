"""Which series of a soak grow."""

from services.jobs.soak import LIMITS, judge_series, verdict

SECONDS = 1_200.0
MINUTES = [minute / 6 for minute in range(1, 120)]
LOAD = {"availability": 1.0}


def test_a_leak_is_found_and_named() -> None:
    """One MiB a minute for twenty minutes is above the limit for certain."""
    series = {("services.orchestrator 0", "rss_mib"): [(at, 40 + at) for at in MINUTES]}
    rows = judge_series(series, SECONDS)
    assert verdict(rows, LOAD, 0.999) == ["rss_mib of services.orchestrator 0 grows"]


def test_a_cache_that_fills_at_the_start_is_no_leak() -> None:
    """The first fifth is left out."""
    points = [(at, 40 + min(at, 3.0) * 20) for at in MINUTES]
    rows = judge_series({("services.data_fabric 0", "rss_mib"): points}, SECONDS)
    assert verdict(rows, LOAD, 0.999) == []


def test_a_descriptor_a_minute_is_a_leak() -> None:
    """Descriptors have a limit of their own."""
    points = [(at, float(int(20 + at))) for at in MINUTES]
    rows = judge_series({("services.control_plane 0", "descriptors"): points}, SECONDS)
    assert [row["is_flat"] for row in rows] == [False]


def test_a_short_run_is_given_what_a_cache_needs() -> None:
    """One minute may see 16 MiB of filling, twenty minutes only half a MiB in each."""
    assert LIMITS["rss_mib"].in_run(60.0) == 16.0
    assert LIMITS["rss_mib"].in_run(3_600.0) == 0.5


def test_missing_answers_fail_a_soak() -> None:
    """Flat processes that do not answer are no pass."""
    series = {("services.orchestrator 0", "rss_mib"): [(at, 40.0) for at in MINUTES]}
    reasons = verdict(judge_series(series, SECONDS), {"availability": 0.9}, 0.999)
    assert reasons == ["availability 0.9 < 0.999"]


def test_a_run_without_points_proves_nothing() -> None:
    """Too short a run does not pass."""
    assert verdict([], LOAD, 0.999) == ["the run was too short for a slope"]


def test_more_than_one_full_collection_a_minute_fails_a_soak() -> None:
    """They stop the interpreter (P5): two a minute are named, one in two minutes is not."""
    key = ("services.orchestrator", "full_collections")
    rows = judge_series({key: [(at, float(int(2 * at))) for at in MINUTES]}, SECONDS)
    assert verdict(rows, LOAD, 0.999) == ["full_collections of services.orchestrator grows"]
    rows = judge_series({key: [(at, float(int(at / 2))) for at in MINUTES]}, SECONDS)
    assert verdict(rows, LOAD, 0.999) == []
