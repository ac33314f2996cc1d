"""kill -9 of each of the four real services, five times, under load on the bench home."""

import pytest

from benchmarks.kill_matrix import SERVICES, bench_mesh, kill_in_turn
from supervisor import run

KILLS_EACH = 5
"""No more within 30 s than the restart intensity allows."""
RATE_PER_S = 200.0
SPACING_S = 1.0
WORST_MS_MAX = 1_000.0


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_kills_refuse_nobody_and_lose_nothing() -> None:
    """At 200 requests a second: 0 refused, 0 failed after one retry, no answer later than 1 s;
    the control plane has counted each answered request once, retried ones included; and no child
    was degraded."""
    with bench_mesh() as home:
        report = await kill_in_turn(home, KILLS_EACH * len(SERVICES), RATE_PER_S, SPACING_S)
        children = run.status(home)["children"]
    outcome = report.outcome
    assert (outcome.refused, outcome.failures) == (0, {})
    assert outcome.quantile_ms(1.0) <= WORST_MS_MAX
    assert report.counted == outcome.answered == outcome.sent
    assert {row["restarts"] for row in children} == {KILLS_EACH}
    assert {row["condition"] for row in children} == {"up"}
