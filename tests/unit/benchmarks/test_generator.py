"""What the generator makes of its latencies."""

from benchmarks.generator import Load, p99_sigma_ms


def test_an_even_load_has_no_spread_of_its_p99() -> None:
    """One window per second since the warm-up; one window alone has no spread."""
    load = Load()
    for number in range(1_000):
        load.due_s.append(load.began_s + number / 1_000)
        load.latencies_s.append(0.001)
    assert p99_sigma_ms(load) is None
    for number in range(1_000):
        load.due_s.append(load.began_s + 1 + number / 1_000)
        load.latencies_s.append(0.001)
    assert p99_sigma_ms(load) == 0.0


def test_a_second_that_is_slow_shows_in_the_spread() -> None:
    """p99 of 1 ms and of 21 ms deviate by 10 ms from their mean."""
    load = Load()
    for second, latency_s in enumerate((0.001, 0.021)):
        for number in range(100):
            load.due_s.append(load.began_s + second + number / 100)
            load.latencies_s.append(latency_s)
    assert p99_sigma_ms(load) == 10.0
