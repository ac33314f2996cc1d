"""The closed error vocabulary: one row per error, and the exception and body that carry it.

A number once given never changes its meaning. A service may answer only with the errors that its
method row declares; anything else becomes INTERNAL.
"""

from dataclasses import dataclass

from contracts.types import UNSET, Open, Scalar, UnsetType


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One error: its stable number, its name, what it means, who raises it, may it be retried."""

    code: int
    name: str
    meaning: str
    raised_by: str
    retryable: bool


_ROWS = (
    ErrorRow(
        101,
        "TOKENIZER_INVALID_INPUT",
        "the text cannot be tokenised",
        "model runtime",
        False,
    ),
    ErrorRow(
        102, "INVALID_REQUEST", "the body breaks the method's contract", "every service", False
    ),
    ErrorRow(103, "METHOD_UNKNOWN", "this socket has no such method", "every service", False),
    ErrorRow(
        104,
        "INPUT_TOO_LONG",
        "the input is longer than the model's contract allows",
        "orchestrator, model runtime",
        False,
    ),
    ErrorRow(
        201,
        "FEATURE_INVALID",
        "a row breaks the view's contract; the field, limit and value are named",
        "data fabric",
        False,
    ),
    ErrorRow(
        202, "FEATURE_FROZEN", "a feature drifted and its contract says refuse", "data fabric", True
    ),
    ErrorRow(
        203,
        "FEATURE_STALE",
        "the sources are older than the view's freshness SLA",
        "data fabric",
        True,
    ),
    ErrorRow(204, "VIEW_UNKNOWN", "no such feature view or version", "data fabric", False),
    ErrorRow(301, "MODEL_UNKNOWN", "no such model, version or alias", "orchestrator", False),
    ErrorRow(
        302,
        "MODEL_NOT_READY",
        "the version is deployed but no replica has it ready",
        "orchestrator, model runtime",
        True,
    ),
    ErrorRow(
        303,
        "OUTPUT_INVALID",
        "the model's output breaks its own contract",
        "model runtime, orchestrator",
        False,
    ),
    ErrorRow(
        304,
        "MEMORY_EXHAUSTED",
        "the work does not fit into memory",
        "model runtime, data fabric",
        True,
    ),
    ErrorRow(305, "FORWARD_FAILED", "the model's forward raised", "model runtime", False),
    ErrorRow(
        306,
        "PACK_INVALID",
        "a pack is incomplete, altered or untrusted",
        "model runtime, control plane",
        False,
    ),
    ErrorRow(
        461, "OVERLOADED", "a bounded queue or the connection cap is full", "every service", True
    ),
    ErrorRow(
        462, "DEADLINE_EXCEEDED", "the deadline passed; the hop is named", "every service", False
    ),
    ErrorRow(
        463, "QUOTA_EXCEEDED", "the tenant's or model's limit is used up", "orchestrator", True
    ),
    ErrorRow(464, "CANCELLED", "the caller cancelled or left", "every service", False),
    ErrorRow(
        465, "UNAVAILABLE", "a process that is needed is down or restarting", "every service", True
    ),
    ErrorRow(466, "PERMISSION_DENIED", "the peer's uid has no such right", "every service", False),
    ErrorRow(
        467,
        "RULE_REFUSED",
        "a routing rule refuses the request; it is named",
        "orchestrator",
        False,
    ),
    ErrorRow(
        501, "POLICY_INVALID", "a policy breaks its schema or a cross rule", "control plane", False
    ),
    ErrorRow(
        502,
        "VERSION_CONFLICT",
        "the expected version is not the current one",
        "control plane",
        False,
    ),
    ErrorRow(503, "PROOF_FAILED", "a contract property was not proven", "control plane", False),
    ErrorRow(504, "DISK_FULL", "the disk is full", "every service", True),
    ErrorRow(
        505,
        "POLICY_REJECTED",
        "an instance said no or was silent, or a sign-off is missing; it is named",
        "control plane",
        True,
    ),
    ErrorRow(506, "TRACE_UNKNOWN", "no receipt has this trace id", "control plane", False),
    ErrorRow(
        901,
        "INTERNAL",
        "a defect of ours; the log has it under the trace id",
        "every service",
        False,
    ),
)

REASONS = {
    "in_flight": "OVERLOADED: as many requests are in flight as may be",
    "bytes": "OVERLOADED: as many bytes are in flight as may be",
    "queue_rows": "OVERLOADED: as many rows are in flight as queue_rows_max allows",
    "deadline": "OVERLOADED: it would be answered after its deadline",
    "sla": "OVERLOADED: it would wait longer than the model's sla policy promises",
    "memory": "OVERLOADED: a process is short of memory, and the policy says shed this risk class",
    "receipts": "OVERLOADED: receipts wait for the control plane up to spool_bytes_max",
    "connections": "OVERLOADED: as many connections are open as connections_max allows",
    "connection_in_flight": "OVERLOADED: this connection has in_flight_per_connection_max open",
    "waiting": "OVERLOADED: a service has as much of this work waiting as it takes; see the text",
    "rate": "QUOTA_EXCEEDED: requests_per_s and burst are used up",
    "daily_quota": "QUOTA_EXCEEDED: tokens_per_day is used up; it begins anew at midnight UTC",
}
"""Why a request is refused that could be served at another time: `details.reason`.
Closed: a reason once given keeps its meaning."""

CALLERS_OWN = frozenset({
    "TOKENIZER_INVALID_INPUT", "INVALID_REQUEST", "METHOD_UNKNOWN", "INPUT_TOO_LONG",
    "FEATURE_INVALID", "MODEL_UNKNOWN", "QUOTA_EXCEEDED", "CANCELLED", "PERMISSION_DENIED",
    "RULE_REFUSED",
})  # fmt: skip
"""Ends of a request that say nothing about the mesh: what the caller asked for cannot be given, is
not allowed, or was taken back. Every other error counts against the availability of an `sla`."""

ERRORS: dict[str, ErrorRow] = {row.name: row for row in _ROWS}
NAMES: dict[int, str] = {row.code: row.name for row in _ROWS}

assert ERRORS.keys() >= CALLERS_OWN, "they are errors of the table"
assert len(ERRORS) == len(NAMES) == len(_ROWS), "an error's name and number are unique"

# Errors that the wire itself answers with, whatever the method declares.
COMMON = (
    "INVALID_REQUEST",
    "METHOD_UNKNOWN",
    "OVERLOADED",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
    "UNAVAILABLE",
    "PERMISSION_DENIED",
    "INTERNAL",
)


class ErrorBody(Open, frozen=True, kw_only=True):
    """The error of a response on the wire. `retry_after_ms` is a hint in milliseconds, ≥ 0."""

    code: int
    name: str
    message: str
    trace_id: str
    retryable: bool
    retry_after_ms: int | UnsetType = UNSET
    details: dict[str, Scalar] | UnsetType = UNSET


class MeshError(Exception):
    """An operating error with a row in the table.

    `message` names the limit and what was received. Raised by handlers; mapped to an `ErrorBody`
    once, where the response is encoded.
    """

    def __init__(
        self,
        name: str,
        message: str,
        *,
        retry_after_ms: int | None = None,
        details: dict[str, Scalar] | None = None,
        trace_id: str = "",
    ) -> None:
        super().__init__(f"{name}: {message}")
        self.row = ERRORS[name]
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.details = details
        self.trace_id = trace_id

    @property
    def name(self) -> str:
        """The error's name in the table."""
        return self.row.name

    def body(self, trace_id: str) -> ErrorBody:
        """The wire form; `trace_id` is used where the error does not carry its own."""
        return ErrorBody(
            code=self.row.code,
            name=self.row.name,
            message=self.message,
            trace_id=self.trace_id or trace_id,
            retryable=self.row.retryable,
            retry_after_ms=UNSET if self.retry_after_ms is None else self.retry_after_ms,
            details=UNSET if self.details is None else self.details,
        )

    @classmethod
    def from_body(cls, body: ErrorBody) -> "MeshError":
        """The exception for a received body; an unknown name (a newer peer) becomes INTERNAL."""
        details = None if body.details is UNSET else body.details
        return cls(
            body.name if body.name in ERRORS else "INTERNAL",
            body.message,
            retry_after_ms=None if body.retry_after_ms is UNSET else body.retry_after_ms,
            details=details,
            trace_id=body.trace_id,
        )
