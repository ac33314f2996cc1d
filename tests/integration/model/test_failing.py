"""Failing requests leave nothing behind in the processes. `make failing` sends 10,000."""

import asyncio
from pathlib import Path

from benchmarks.failing import EXPECTED, growth, measure
from benchmarks.misbehaving import mesh_with, picky

REQUESTS = 320


def test_failing_requests_leave_memory_and_descriptors_as_they_were(tmp_path: Path) -> None:
    """Every kind of failure, good requests beside them answered: no process grows."""
    with mesh_with(tmp_path, [picky()]) as mesh:
        found, ends = asyncio.run(measure(mesh, REQUESTS))
    assert set(ends) == EXPECTED
    assert growth(found) == []
