"""Deadlines: absolute inside a process, remaining on the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.deadline import (
    deadline_after,
    remaining_ms,
    remaining_us,
    share_deadline,
)

TIMES = st.floats(min_value=0, max_value=1e6)


@pytest.mark.parametrize(
    ("deadline_s", "now_s", "left_ms"),
    [(10.0, 9.0, 1_000), (10.0, 9.9995, 1), (10.0, 10.0, 0), (10.0, 12.0, 0)],
)
def test_what_remains_is_rounded_up_and_never_negative(
    deadline_s: float, now_s: float, left_ms: int
) -> None:
    """A request with half a millisecond left does not arrive as expired."""
    assert remaining_ms(deadline_s, now_s) == left_ms


@given(received_s=TIMES, left_ms=st.integers(0, 86_400_000))
def test_a_deadline_survives_the_wire(received_s: float, left_ms: int) -> None:
    """What remains at the instant of receipt is what was sent, to the rounding of a float."""
    deadline_s = deadline_after(received_s, left_ms)
    assert left_ms <= remaining_ms(deadline_s, received_s) <= left_ms + 1
    assert abs(remaining_us(deadline_s, received_s) - left_ms * 1_000) <= 1


@given(deadline_s=TIMES, now_s=TIMES, share_s=st.floats(0, 10))
def test_a_hop_gets_its_share_but_no_more_than_remains(
    deadline_s: float, now_s: float, share_s: float
) -> None:
    """min(remaining, share), as an absolute time."""
    hop_s = share_deadline(deadline_s, now_s, share_s)
    assert hop_s <= deadline_s
    assert hop_s <= now_s + share_s
    assert hop_s in (deadline_s, now_s + share_s)
