"""Deadlines: absolute monotonic seconds inside a process, remaining time on the wire.

A deadline travels as what remains, because only durations survive a change of process. Each hop
gets `min(remaining, its share)`, and who finds that it passed says where.
"""

import math

from contracts.errors import MeshError
from contracts.types import Scalar


def deadline_after(received_s: float, remaining_ms: int) -> float:
    """The absolute deadline of a request received at `received_s` with `remaining_ms` left."""
    return received_s + remaining_ms / 1_000


def remaining_ms(deadline_s: float, now_s: float) -> int:
    """What goes on the wire: whole milliseconds left, rounded up, never negative.

    Rounded up so that a request with half a millisecond left is not refused by its receiver as
    already expired; the sender enforces its own deadline exactly.
    """
    return max(0, math.ceil((deadline_s - now_s) * 1_000))


def remaining_us(deadline_s: float, now_s: float) -> int:
    """Whole microseconds left, never negative; for messages inside the mesh."""
    return max(0, int((deadline_s - now_s) * 1_000_000))


def share_deadline(deadline_s: float, now_s: float, share_s: float) -> float:
    """The deadline of one hop: its share from now, but no later than the request's own."""
    return min(deadline_s, now_s + share_s)


def exceeded(text: str, stage: str, hop: str, deadline_ms: int | None = None) -> MeshError:
    """DEADLINE_EXCEEDED naming the stage (of `contracts.stages`) and the service or instance where
    time ran out; `deadline_ms` is what was allowed there, where it is known."""
    details: dict[str, Scalar] = {"stage": stage, "hop": hop}
    if deadline_ms is not None:
        details["deadline_ms"] = deadline_ms
    return MeshError("DEADLINE_EXCEEDED", text, details=details)
