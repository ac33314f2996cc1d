"""The benchmark of token models at a small size: what must hold on any machine. How much batches
are worth and what short requests wait is the benchmark's to say, never a test's."""

from benchmarks.tokens import is_sound, measure


def test_nobody_fails_beside_long_requests_and_padding_is_counted() -> None:
    """Every load has its figures, nobody in either comparison fails, batches of unequal rows are
    padded, never by more than their longest row asks for, and the cost of a token is learnt."""
    found = measure(1.5, 1)
    assert is_sound(found)
    assert all(per_s > 0 for per_s in found["capacity_per_s"].values())
    assert set(found["beside_long_ones"]) == {"long ones alone", "long ones take others along"}
    assert 0.0 < found["padding_share"] < 0.9
    assert found["learnt"]["cost_token_us wordy 1"] > 0
