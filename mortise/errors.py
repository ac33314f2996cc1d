"""The base of every error that the SDK raises; the vocabulary itself is in `mortise.generated`."""

from collections.abc import Mapping
from typing import Any


class MortiseError(Exception):
    """An error of the mesh.

    `retryable` says whether the same request may succeed later, `retry_after_ms` when to try.
    `details` names field, limit and what was received, where there are such. `trace_id` finds the
    request in logs and receipts. An error name that this SDK is too old to know keeps this class.
    """

    code: int = 0
    name: str = "UNKNOWN"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        trace_id: str = "",
        retry_after_ms: int | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.trace_id = trace_id
        self.retry_after_ms = retry_after_ms
        self.details = dict(details or {})

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"
