"""When a lane's parts leave as a batch, how long requests are divided, and how rows are joined.

An idle runtime is fed at once. While every runtime that has the version is busy, parts gather until
the rows are full or the first arrival has waited the window; and what is in a batch is decided as
late as the runtime allows, so that who arrives meanwhile takes its place in the fair order.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass

from contracts.policies import BatchingPolicy, BatchingSpec, PolicySet
from services.orchestrator.config import batch_bytes_max
from services.orchestrator.request import Bytes

IDLE = float("-inf")
"""From when a runtime that computes nothing needs a batch."""


@dataclass(frozen=True, slots=True)
class Window:
    """How parts gather. Of token models: a batch has at most `tokens_max` tokens, counted as they
    are computed, rows times the longest; a part over `tokens_split` goes alone; a row over
    `tokens_max` is refused unless `takes_oversize`."""

    wait_s: float
    rows_max: int
    bytes_max: int = batch_bytes_max
    tokens_max: int = 8_192
    tokens_split: int = 1_000
    takes_oversize: bool = False

    @classmethod
    def of(cls, spec: BatchingSpec) -> "Window":
        """The window that a batching policy asks for."""
        return cls(
            spec.wait_ms / 1_000,
            spec.rows_max,
            batch_bytes_max,
            spec.tokens_max,
            spec.tokens_split,
            spec.oversize == "alone",
        )


def leaves_at(rows: int, oldest_s: float, window: Window, wanted_s: float) -> float:
    """When waiting rows may leave to a runtime with a credit.

    `rows` ≥ 1 wait, the first since `oldest_s`. `wanted_s`: from when that runtime needs another
    batch so as not to pause, IDLE when it computes nothing.
    """
    if wanted_s == IDLE or rows >= window.rows_max:
        return wanted_s
    return max(wanted_s, oldest_s + window.wait_s)


def spans_of(rows: int, row_bytes: int, window: Window) -> list[tuple[int, int]]:
    """(start, rows) of each part of a request of `rows` ≥ 1 rows."""
    step = max(1, min(window.rows_max, window.bytes_max // max(1, row_bytes)))
    return [(start, min(step, rows - start)) for start in range(0, rows, step)]


def cut(data: Bytes, start: int, rows: int, row_bytes: int) -> memoryview:
    """The bytes of some rows, not copied."""
    return memoryview(data)[start * row_bytes : (start + rows) * row_bytes]


def drop_rows(data: Bytes, row_bytes: int, dropped: Container[int]) -> bytes:
    """The data without the dropped rows."""
    rows = range(len(data) // row_bytes)
    return b"".join(cut(data, row, 1, row_bytes) for row in rows if row not in dropped)


def windows_of(policies: PolicySet) -> Callable[[str], Window]:
    """Each model's window; the built-in default for one without a batching policy."""
    default = Window.of(BatchingSpec())
    windows = {
        policy.name: Window.of(policy.spec)
        for policy in policies.policies
        if isinstance(policy, BatchingPolicy)
    }
    return lambda model: windows.get(model, default)
