"""When a lane's parts leave as a batch, how long requests are divided, and how rows are joined.

An idle runtime is fed at once. While every runtime that has the version is busy, parts gather until
the rows are full or the first arrival has waited the window.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass

from contracts.policies import BatchingPolicy, BatchingSpec, PolicySet
from services.orchestrator.config import batch_bytes_max
from services.orchestrator.request import Bytes


@dataclass(frozen=True, slots=True)
class Window:
    """How parts gather."""

    wait_s: float
    rows_max: int
    bytes_max: int = batch_bytes_max

    @classmethod
    def of(cls, spec: BatchingSpec) -> "Window":
        """The window that a batching policy asks for."""
        return cls(spec.wait_ms / 1_000, spec.rows_max)


def leaves_at(rows: int, oldest_s: float, window: Window, *, is_idle: bool) -> float:
    """When waiting rows may leave to a runtime with a credit: −inf is now.

    `rows` ≥ 1 wait, the first since `oldest_s`; `is_idle`: that runtime computes nothing.
    """
    if is_idle or rows >= window.rows_max:
        return float("-inf")
    return oldest_s + window.wait_s


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
