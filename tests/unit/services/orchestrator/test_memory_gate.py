"""Shedding while memory is short."""

import pytest

from contracts.errors import REASONS, MeshError
from services.orchestrator.memory_gate import MemoryGate, forget_s

WHY = "model_runtime 0: memory: 900 MiB used, memory_mib_max is 1,000; deploy fewer versions"


def test_only_the_named_classes_are_refused_with_limit_and_received() -> None:
    """The reason is of the closed list; the text names the process, the limit and the remedy."""
    gate = MemoryGate()
    gate.tell([3], WHY, 100.0)
    gate.check(1, 100.0)
    gate.check(2, 100.0)
    with pytest.raises(MeshError, match=r"risk level 3 is shed.*memory_mib_max is 1,000") as shed:
        gate.check(3, 100.0)
    assert (shed.value.name, shed.value.details) == ("OVERLOADED", {"reason": "memory"})
    assert "memory" in REASONS
    assert shed.value.retry_after_ms
    assert (gate.refused, gate.is_shut) == (1, True)
    assert gate.reasons(100.0) == [f"memory is short, risk 3 is shed: {WHY}"]


def test_it_opens_when_it_is_over() -> None:
    """Told so: nobody is refused, and the hot path does not look any more."""
    gate = MemoryGate()
    gate.tell([2, 3], WHY, 100.0)
    gate.tell([], "", 101.0)
    gate.check(3, 101.0)
    assert (gate.is_shut, gate.refused, gate.reasons(101.0)) == (False, 0, [])


def test_what_is_not_told_again_is_forgotten() -> None:
    """A supervisor that went silent shuts nobody out."""
    gate = MemoryGate()
    gate.tell([3], WHY, 100.0)
    with pytest.raises(MeshError):
        gate.check(3, 100.0 + forget_s - 0.001)
    assert gate.reasons(100.0 + forget_s) == [], "health forgets it without any request as well"
    gate.check(3, 100.0 + forget_s)
    assert not gate.is_shut
