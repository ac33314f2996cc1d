"""100,000 mutated frames; ten million by `make fuzz`."""

from collections.abc import Callable

import pytest

from tests.fuzz.wire import Fuzzer
from tests.integration.wire.toy import Toy

FRAMES = 100_000
SEED = 20_130_101


@pytest.mark.slow
def test_mutated_frames_end_in_declared_errors_or_closed_connections(
    start_toy: Callable[..., Toy],
) -> None:
    """Every request is answered once, the server neither grows nor stalls; repeatable by seed."""
    fuzzer = Fuzzer(start_toy(), SEED)
    fuzzer.run(FRAMES)
    assert fuzzer.tally.frames == FRAMES
    assert fuzzer.tally.errors["INVALID_REQUEST"] > 1_000
    assert fuzzer.tally.closed > 1_000
