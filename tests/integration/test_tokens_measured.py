"""The benchmark of token models at a small size: what must hold on any machine."""

from benchmarks.tokens import is_sound, measure


def test_batches_of_unequal_rows_pay_and_long_ones_do_not_take_short_ones_along() -> None:
    """Nobody fails beside long requests; batches answer more than single rows (how much more is the
    benchmark's to say); and short ones wait less while long ones go alone."""
    found = measure(1.5, 1)
    assert is_sound(found)
    assert found["batched_to_single"] > 1.0
    alone, along = found["beside_long_ones"].values()
    assert alone["short_p99_ms"] < along["short_p99_ms"]
    assert 0.0 < found["padding_share"] < 0.9
