"""The mesh in one word, and why."""

from typing import Any

import msgspec

from supervisor.status import ChildRow, state_of


def child(service: str = "model_runtime", index: int = 0, **changes: Any) -> ChildRow:
    """A child that is up."""
    row = ChildRow(
        service=service,
        index=index,
        condition="up",
        ready=True,
        degraded=False,
        reasons=[],
        policy_version=1,
        pid=7,
        instance=f"{service}.{index}-a",
        uptime_s=1.0,
        active_s=1.0,
        restarts=0,
        last_ending="",
        durations_s={},
        standby=None,
    )
    return msgspec.structs.replace(row, **changes)


GIVEN_UP = {"condition": "degraded", "degraded": True, "pid": None, "ready": False}
WHY = "failed too often, last: exit 1"


def test_runtimes_that_are_all_given_up_are_no_start() -> None:
    """Degraded, naming each and why, though nothing can be answered."""
    children = [
        child("orchestrator"),
        *(child(index=at, **GIVEN_UP, reasons=[WHY]) for at in (0, 1)),
    ]
    state, reason = state_of(children, serves=False, is_live=False)
    assert state == "degraded"
    assert reason == f"it cannot answer; model_runtime.0: {WHY}, model_runtime.1: {WHY}"


def test_a_template_that_is_given_up_is_no_start_either() -> None:
    """Nobody can be forked from it."""
    waiting = child(condition="waiting", ready=False)
    found = state_of([waiting], serves=False, is_live=False, template_fault=WHY)
    assert found == ("degraded", f"it cannot answer; template: {WHY}")


def test_a_start_is_a_start() -> None:
    """Nobody is given up: a child that is not up yet, then an edge that is not ready."""
    starting = [child(condition="starting", ready=False)]
    assert state_of(starting, serves=False, is_live=False) == ("starting", "")
    assert state_of([child(ready=False)], serves=False, is_live=True) == ("live", "")


def test_a_mesh_that_serves_is_ready_or_degraded() -> None:
    """Degraded when one is given up, missing, or serves less by its own word."""
    assert state_of([child()], serves=True, is_live=True) == ("ready", "")
    less = child("orchestrator", degraded=True, reasons=["breaker open"])
    gone = child(index=1, condition="starting", ready=False)
    lost = child(index=2, **GIVEN_UP, reasons=[WHY])
    state, reason = state_of([less, gone, lost], serves=True, is_live=False)
    assert state == "degraded"
    assert reason == (
        f"model_runtime.2: {WHY}, orchestrator.0: breaker open, model_runtime.1: starting"
    )
