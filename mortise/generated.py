"""Generated from contracts/ by `python -m contracts.generate`; do not edit.

The methods of every socket, the error vocabulary as exceptions, and the limits a client must know.
"""

from typing import NamedTuple

from mortise.errors import MortiseError


class Method(NamedTuple):
    """What a client must know of a method."""

    timeout_ms: int
    idempotent: bool
    streaming: bool


PROTOCOL_VERSION = 1
FRAME_BYTES_MAX = 16777216
IN_FLIGHT_PER_CONNECTION_MAX = 1024
SOCKET_PATH_BYTES_MAX = 107
INFER_FIELDS = (
    "id",
    "trace_id",
    "model_name",
    "model_version",
    "policy_version",
    "variant",
    "degraded",
    "marks",
    "outputs",
    "predictions",
    "text",
    "generated_ids",
    "logprobs",
    "finish_reason",
    "confidence_score",
    "explanations",
    "usage",
    "timing_us",
    "lineage",
    "freshness_s",
    "frozen",
    "items",
)
"""Every field that an `infer` answer may have."""

METHODS: dict[str, dict[str, Method]] = {
    "orchestrator": {
        "ping": Method(1000, True, False),
        "describe": Method(5000, True, False),
        "health": Method(1000, True, False),
        "statistics": Method(1000, True, False),
        "metrics": Method(1000, True, False),
        "infer": Method(5000, True, True),
        "models": Method(5000, True, False),
    },
    "control_plane": {
        "ping": Method(1000, True, False),
        "describe": Method(5000, True, False),
        "health": Method(1000, True, False),
        "statistics": Method(1000, True, False),
        "metrics": Method(1000, True, False),
        "apply": Method(5000, False, False),
        "policies": Method(5000, True, False),
        "commits": Method(5000, True, False),
        "verify": Method(60000, True, False),
        "publish": Method(5000, True, False),
        "promote": Method(300000, True, True),
        "rollback": Method(5000, False, False),
        "contracts": Method(5000, True, False),
        "contracts_sign": Method(5000, True, False),
        "snapshot": Method(5000, True, False),
        "diff": Method(5000, True, False),
        "status": Method(5000, True, False),
        "trace": Method(5000, True, False),
        "subscribe": Method(86400000, True, True),
        "acknowledge": Method(1000, True, False),
        "report": Method(1000, True, False),
        "receipts": Method(5000, True, False),
    },
    "data_fabric": {
        "ping": Method(1000, True, False),
        "describe": Method(5000, True, False),
        "health": Method(1000, True, False),
        "statistics": Method(1000, True, False),
        "metrics": Method(1000, True, False),
        "features": Method(5000, True, False),
        "features_batch": Method(1000, True, False),
        "views": Method(5000, True, False),
        "lineage": Method(5000, True, False),
    },
    "model_runtime": {
        "ping": Method(1000, True, False),
        "describe": Method(5000, True, False),
        "health": Method(1000, True, False),
        "statistics": Method(1000, True, False),
        "metrics": Method(1000, True, False),
        "execute": Method(5000, True, False),
        "models": Method(5000, True, False),
        "memory": Method(5000, True, False),
    },
}


class TokenizerInvalidInput(MortiseError):
    """The text cannot be tokenised."""

    code = 101
    name = "TOKENIZER_INVALID_INPUT"
    retryable = False


class InvalidRequest(MortiseError):
    """The body breaks the method's contract."""

    code = 102
    name = "INVALID_REQUEST"
    retryable = False


class MethodUnknown(MortiseError):
    """This socket has no such method."""

    code = 103
    name = "METHOD_UNKNOWN"
    retryable = False


class InputTooLong(MortiseError):
    """The input is longer than the model's contract allows."""

    code = 104
    name = "INPUT_TOO_LONG"
    retryable = False


class FeatureInvalid(MortiseError):
    """A row breaks the view's contract; the field, limit and value are named."""

    code = 201
    name = "FEATURE_INVALID"
    retryable = False


class FeatureFrozen(MortiseError):
    """A feature drifted and its contract says refuse."""

    code = 202
    name = "FEATURE_FROZEN"
    retryable = True


class FeatureStale(MortiseError):
    """The sources are older than the view's freshness SLA."""

    code = 203
    name = "FEATURE_STALE"
    retryable = True


class ViewUnknown(MortiseError):
    """No such feature view or version."""

    code = 204
    name = "VIEW_UNKNOWN"
    retryable = False


class ModelUnknown(MortiseError):
    """No such model, version or alias."""

    code = 301
    name = "MODEL_UNKNOWN"
    retryable = False


class ModelNotReady(MortiseError):
    """The version is deployed but no replica has it ready."""

    code = 302
    name = "MODEL_NOT_READY"
    retryable = True


class OutputInvalid(MortiseError):
    """The model's output breaks its own contract."""

    code = 303
    name = "OUTPUT_INVALID"
    retryable = False


class MemoryExhausted(MortiseError):
    """The work does not fit into memory."""

    code = 304
    name = "MEMORY_EXHAUSTED"
    retryable = True


class ForwardFailed(MortiseError):
    """The model's forward raised."""

    code = 305
    name = "FORWARD_FAILED"
    retryable = False


class PackInvalid(MortiseError):
    """A pack is incomplete, altered or untrusted."""

    code = 306
    name = "PACK_INVALID"
    retryable = False


class Overloaded(MortiseError):
    """A bounded queue or the connection cap is full."""

    code = 461
    name = "OVERLOADED"
    retryable = True


class DeadlineExceeded(MortiseError):
    """The deadline passed; the hop is named."""

    code = 462
    name = "DEADLINE_EXCEEDED"
    retryable = False


class QuotaExceeded(MortiseError):
    """The tenant's or model's limit is used up."""

    code = 463
    name = "QUOTA_EXCEEDED"
    retryable = True


class Cancelled(MortiseError):
    """The caller cancelled or left."""

    code = 464
    name = "CANCELLED"
    retryable = False


class Unavailable(MortiseError):
    """A process that is needed is down or restarting."""

    code = 465
    name = "UNAVAILABLE"
    retryable = True


class PermissionDenied(MortiseError):
    """The peer's uid has no such right."""

    code = 466
    name = "PERMISSION_DENIED"
    retryable = False


class RuleRefused(MortiseError):
    """A routing rule refuses the request; it is named."""

    code = 467
    name = "RULE_REFUSED"
    retryable = False


class PolicyInvalid(MortiseError):
    """A policy breaks its schema or a cross rule."""

    code = 501
    name = "POLICY_INVALID"
    retryable = False


class VersionConflict(MortiseError):
    """The expected version is not the current one."""

    code = 502
    name = "VERSION_CONFLICT"
    retryable = False


class ProofFailed(MortiseError):
    """A contract property was not proven."""

    code = 503
    name = "PROOF_FAILED"
    retryable = False


class DiskFull(MortiseError):
    """The disk is full."""

    code = 504
    name = "DISK_FULL"
    retryable = True


class PolicyRejected(MortiseError):
    """An instance said no or was silent, or a sign-off is missing; it is named."""

    code = 505
    name = "POLICY_REJECTED"
    retryable = True


class TraceUnknown(MortiseError):
    """No receipt has this trace id."""

    code = 506
    name = "TRACE_UNKNOWN"
    retryable = False


class Internal(MortiseError):
    """A defect of ours; the log has it under the trace id."""

    code = 901
    name = "INTERNAL"
    retryable = False


ERRORS: dict[str, type[MortiseError]] = {
    "TOKENIZER_INVALID_INPUT": TokenizerInvalidInput,
    "INVALID_REQUEST": InvalidRequest,
    "METHOD_UNKNOWN": MethodUnknown,
    "INPUT_TOO_LONG": InputTooLong,
    "FEATURE_INVALID": FeatureInvalid,
    "FEATURE_FROZEN": FeatureFrozen,
    "FEATURE_STALE": FeatureStale,
    "VIEW_UNKNOWN": ViewUnknown,
    "MODEL_UNKNOWN": ModelUnknown,
    "MODEL_NOT_READY": ModelNotReady,
    "OUTPUT_INVALID": OutputInvalid,
    "MEMORY_EXHAUSTED": MemoryExhausted,
    "FORWARD_FAILED": ForwardFailed,
    "PACK_INVALID": PackInvalid,
    "OVERLOADED": Overloaded,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "QUOTA_EXCEEDED": QuotaExceeded,
    "CANCELLED": Cancelled,
    "UNAVAILABLE": Unavailable,
    "PERMISSION_DENIED": PermissionDenied,
    "RULE_REFUSED": RuleRefused,
    "POLICY_INVALID": PolicyInvalid,
    "VERSION_CONFLICT": VersionConflict,
    "PROOF_FAILED": ProofFailed,
    "DISK_FULL": DiskFull,
    "POLICY_REJECTED": PolicyRejected,
    "TRACE_UNKNOWN": TraceUnknown,
    "INTERNAL": Internal,
}
