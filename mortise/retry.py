"""When a call is tried a second time, and how long a dial waits between attempts. Pure."""

from mortise.errors import MortiseError
from mortise.generated import DeadlineExceeded, Unavailable
from mortise.requests import Call

ATTEMPTS_MAX = 2
"""A call is tried once more at most; what is beyond is the caller's decision."""
UNAVAILABLE_WAIT_S = 0.05
"""Before the second attempt when the answer names no better hint; a restart takes 2 … 90 ms."""
DIAL_WAIT_S_MIN, DIAL_WAIT_S_MAX = 0.001, 0.05
"""Between attempts on a full backlog: 5,000 clients at once were all in after 0.24 s."""
GRACE_S = 0.1
"""How long past its deadline an answer is awaited: the peer's own refusal says which hop it was."""


class Lost(Unavailable):
    """The connection broke before the answer came."""


class MeshDown(Unavailable):
    """Nothing listens at the socket; `remedy` is the command that changes it."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


def second_attempt_wait_s(error: MortiseError, call: Call, remaining_s: float) -> float | None:
    """How long to wait before trying again, or None: do not.

    Only a lost connection and UNAVAILABLE are tried again: OVERLOADED would feed the overload.
    Raises DEADLINE_EXCEEDED when the connection was lost because time is up.
    """
    if isinstance(error, Lost) and remaining_s <= 0:
        raise timed_out(call, error.message) from error
    if not isinstance(error, Unavailable) or isinstance(error, MeshDown) or not call.is_idempotent:
        return None
    hint_ms = 0 if isinstance(error, Lost) else error.retry_after_ms
    wait_s = UNAVAILABLE_WAIT_S if hint_ms is None else hint_ms / 1_000
    return wait_s if wait_s < remaining_s else None


def dial_wait_s(attempt: int, chance: float) -> float:
    """Full jitter under a doubling bound; `attempt` counts from 0, `chance` is in [0, 1)."""
    return chance * min(DIAL_WAIT_S_MAX, DIAL_WAIT_S_MIN * 2.0 ** min(attempt, 16))


def timed_out(call: Call, why: str = "") -> DeadlineExceeded:
    """The client's own DEADLINE_EXCEEDED, when the peer did not even answer that."""
    reason = f": {why}" if why else ""
    return DeadlineExceeded(
        f"{call.method} was not answered within {call.timeout_s:g} s, hop client{reason}",
        trace_id=call.trace_id,
    )
