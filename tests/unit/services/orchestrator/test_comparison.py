"""How far apart two answers are."""

import math
import struct

import pytest

from contracts.inference import DATATYPE_BYTES
from services.orchestrator.comparison import difference, numbers_of, outputs_difference
from services.orchestrator.numbers import pack_numbers
from services.orchestrator.plan import TensorPlan


@pytest.mark.parametrize("datatype", [name for name in DATATYPE_BYTES if name != "BOOL"])
def test_numbers_of_every_datatype_are_read(datatype: str) -> None:
    """What was packed comes out, no more of it than asked for."""
    packed = pack_numbers([1, 2, 3], datatype)
    assert list(numbers_of(packed, datatype, 8)) == [1, 2, 3]
    assert list(numbers_of(packed, datatype, 2)) == [1, 2]
    assert list(numbers_of(b"", datatype, 2)) == []


def test_the_largest_difference_counts() -> None:
    """Signs do not; equal infinities are equal; one that is not a number is infinitely far."""
    assert difference([1.0, -2.0, 3.0], [1.5, 2.0, 3.0]) == 4.0
    assert difference([math.inf], [math.inf]) == 0.0
    assert difference([math.inf], [1.0]) == math.inf
    assert difference([math.nan], [1.0]) == math.inf
    assert difference([math.nan], [math.nan]) == 0.0
    assert difference([], []) == 0.0


def test_outputs_share_the_bound_of_numbers() -> None:
    """The second output is looked at only as far as the first left room."""
    outputs = [TensorPlan(name, "FP32", [2], 8) for name in ("a", "b")]
    one, other = struct.pack("<2f", 0.0, 0.0), struct.pack("<2f", 0.0, 5.0)
    assert outputs_difference(outputs, [one, one], [one, other], 4) == 5.0
    assert outputs_difference(outputs, [one, one], [one, other], 3) == 0.0
    assert outputs_difference(outputs, [one, one], [one, other], 2) == 0.0
