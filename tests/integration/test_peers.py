"""The comparison with other servers, at a small size: our own mesh through its generator."""

import pytest

from benchmarks.peers.run import LOADS, compare
from benchmarks.peers.table import BY_NAME


@pytest.mark.slow
def test_the_mesh_is_asked_by_every_load_and_each_answer_is_right() -> None:
    """One short round of Mortise alone: figures of every load, no error, CPU counted."""
    loads, absent = compare([BY_NAME["mortise"]], 1, 0.4)
    assert absent == {}
    found = loads["mortise"]
    assert list(found) == [f"{model} {kind} {amount}" for model, kind, amount in LOADS]
    for load in found.values():
        assert load["errors"] == 0, load["error_samples"]
        assert load["per_s"] > 0
        assert load["cpu_s_per_1000"] > 0
