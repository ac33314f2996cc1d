"""What `python -m supervisor status` prints of a child."""

from typing import Any

from supervisor.__main__ import line_of


def row(**changes: Any) -> dict[str, Any]:
    """A child's row as the status carries it."""
    child = {
        "service": "orchestrator", "index": 0, "condition": "up", "ready": True, "pid": 17,
        "restarts": 2, "standby": {"pid": 18, "state": "ready"}, "reasons": [],
    }  # fmt: skip
    return child | changes


def test_a_child_without_a_process_has_no_pid_to_show() -> None:
    """A dash, for it and for its standby: None is no word for people."""
    line = line_of(
        row(
            pid=None,
            condition="waiting",
            ready=False,
            standby={"pid": None, "state": "starting"},
            reasons=["failed"],
        )
    )
    assert line == ("orchestrator 0: waiting, pid -, restarts 2, standby - starting (failed)")


def test_a_child_with_a_process_shows_its_pid() -> None:
    """And its standby's."""
    assert line_of(row()) == ("orchestrator 0: up, ready, pid 17, restarts 2, standby 18 ready")
