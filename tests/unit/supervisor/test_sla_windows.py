"""Rolling windows out of time buckets."""

import pytest

from supervisor.sla_windows import BUCKETS_MAX, OTHERS, WINDOWS, Counts, Kept, Window, models_max

DAY_S = 86_400.0
NOW_S = 20_000 * DAY_S
BY_NAME = {window.name: window for window in WINDOWS}
ONE: dict[str, Counts] = {"tiny": {"end ok": 1}}


def counted(kept: Kept, now_s: float) -> dict[str, int]:
    """Answers of `tiny` by window."""
    return {
        window.name: kept.over(window, now_s).get("tiny", {}).get("end ok", 0) for window in WINDOWS
    }


def test_what_was_counted_leaves_one_window_after_the_other() -> None:
    """Never before its seconds are over, at the latest a bucket's width after."""
    kept = Kept(began_s=NOW_S)
    kept.add(NOW_S, ONE)
    for window in WINDOWS:
        inside_s, outside_s = window.seconds, window.seconds + window.width_s
        assert kept.over(window, NOW_S + inside_s) == ONE
        assert kept.over(window, NOW_S + outside_s) == {}
    assert counted(kept, NOW_S + 3_700.0) == {"5m": 0, "1h": 0, "24h": 1, "30d": 1}


def test_counts_of_one_bucket_and_of_several_add_up() -> None:
    """By name and model."""
    kept = Kept(began_s=NOW_S)
    kept.add(NOW_S, {"tiny": {"end ok": 2}, "sleepy": {"end ok": 7}})
    kept.add(NOW_S + 1.0, {"tiny": {"end ok": 3, "end OVERLOADED": 1}})
    kept.add(NOW_S + 120.0, {"tiny": {"end ok": 4}})
    assert kept.over(BY_NAME["5m"], NOW_S + 121.0) == {
        "tiny": {"end ok": 9, "end OVERLOADED": 1},
        "sleepy": {"end ok": 7},
    }


def test_the_history_is_bounded_in_time_and_in_models() -> None:
    """31 days of a request a minute leave as many buckets as the windows need; the model beyond
    `models_max` is counted with others, and nothing is lost."""
    kept = Kept(began_s=NOW_S)
    for minute in range(31 * 1_440):
        kept.add(NOW_S + minute * 60.0, ONE)
    assert {width_s: len(ring) for width_s, ring in kept.rings.items()} == BUCKETS_MAX
    assert counted(kept, NOW_S + 31 * DAY_S - 60.0)["30d"] >= 30 * 1_440
    many: dict[str, Counts] = {f"m{index}": {"end ok": 1} for index in range(models_max + 5)}
    late_s = NOW_S + 40 * DAY_S
    kept.add(late_s, many)
    found = kept.over(BY_NAME["5m"], late_s)
    assert len(found) == models_max + 1
    assert found[OTHERS] == {"end ok": 5}


@pytest.mark.parametrize("step_s", [-3_600.0, -40 * DAY_S, 40 * DAY_S])
def test_a_clock_that_is_set_neither_breaks_nor_swells_it(step_s: float) -> None:
    """What is counted after the step is seen after it; what lies ahead of the clock is not."""
    kept = Kept(began_s=NOW_S)
    kept.add(NOW_S, ONE)
    kept.add(NOW_S + step_s, ONE)
    assert counted(kept, NOW_S + step_s) == {"5m": 1, "1h": 1, "24h": 1, "30d": 1}


def test_a_window_began_no_earlier_than_counting() -> None:
    """Its first bucket, or the first start in this home."""
    window = Window("5m", 300, 60)
    assert Kept(began_s=NOW_S).since_s(window, NOW_S + 90.0) == NOW_S
    assert Kept(began_s=NOW_S).since_s(window, NOW_S + 630.0) == NOW_S + 300.0
