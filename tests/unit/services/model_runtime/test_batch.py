"""What an `execute` call must satisfy before anything is kept for it."""

import pytest

from contracts.errors import MeshError
from contracts.execution import Execute
from contracts.limits import rows_per_request_max
from services.model_runtime.batch import check_counts


def announcing(*rows: int) -> Execute:
    """A batch that says it has so many rows, and has no data at all."""
    return Execute("tiny", "1", list(rows), [2] * len(rows), [10**6] * len(rows))


@pytest.mark.parametrize("rows", [(2**31,), (2**64 - 1,), (1, 2**63), (rows_per_request_max, 1)])
def test_rows_that_are_only_announced_take_no_memory(rows: tuple[int, ...]) -> None:
    """A frame of a hundred bytes once made the runtime count two thousand million rows, 24 GB."""
    with pytest.raises(MeshError, match="rows_per_request_max is 4096; send fewer") as caught:
        check_counts(announcing(*rows))
    assert caught.value.name == "INVALID_REQUEST"


def test_as_many_rows_as_are_allowed_pass() -> None:
    """At the limit, of one request and of two."""
    check_counts(announcing(rows_per_request_max))
    check_counts(announcing(rows_per_request_max - 1, 1))
