"""Benchmarks at a small size: the comparison with our own mesh alone, stages, breadth."""

import sys
from collections.abc import Callable
from unittest.mock import patch

import pytest

from benchmarks import breadth, overhead
from benchmarks.peers.run import LOADS, compare
from benchmarks.peers.table import BY_NAME
from contracts.stages import STAGES


def run(main: Callable[[], int], *words: str) -> int:
    """A benchmark's main with these arguments."""
    with patch.object(sys, "argv", ["benchmark", *words]):
        return main()


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


@pytest.mark.slow
def test_stages_and_floors_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """A small size of `make overhead`: every stage and every floor has a figure."""
    code = run(overhead.main, "--requests", "30", "--no-save")
    printed = capsys.readouterr().out
    assert code == 0
    for name in (*STAGES, "total", "bare forward", "one round trip over a socket"):
        assert name in printed


@pytest.mark.slow
def test_many_tenants_connections_and_models_are_answered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A small size of `make breadth`: no request fails, and each width has its ratio."""
    words = ("--count", "40", "--models", "3", "--seconds", "0.3", "--rounds", "1", "--no-save")
    code = run(breadth.main, *words)
    printed = capsys.readouterr().out
    assert code == 0
    for line in ("40 tenants", "40 connections", "3 models"):
        assert line in printed
