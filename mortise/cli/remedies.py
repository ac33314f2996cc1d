"""What a person can do about each error. Pure."""

from mortise.errors import MortiseError
from mortise.retry import MeshDown

REMEDIES = {
    "TOKENIZER_INVALID_INPUT": "send valid UTF-8 text of 1..8,192 characters",
    "INVALID_REQUEST": "the contract of every field: mortise contracts show",
    "METHOD_UNKNOWN": "the methods of a socket: mortise call describe --socket SOCKET",
    "INPUT_TOO_LONG": "shorten the input; the limit is in the model's contract: mortise models",
    "FEATURE_INVALID": "the contract of every column: mortise features show",
    "FEATURE_FROZEN": "try again after the hint; which features are frozen: mortise features show",
    "FEATURE_STALE": "bring the view's sources up to date; its SLA: mortise features show",
    "VIEW_UNKNOWN": "the views that are loaded: mortise features show",
    "MODEL_UNKNOWN": "the models of this mesh: mortise models",
    "MODEL_NOT_READY": "wait for it, or see why it fails: mortise models, mortise logs",
    "OUTPUT_INVALID": "the model broke its own contract; its previous version: mortise rollback",
    "MEMORY_EXHAUSTED": "send fewer rows at once, or raise [runtime] memory_mib_max",
    "FORWARD_FAILED": "the model's own error is in the log: mortise logs --trace TRACE_ID",
    "PACK_INVALID": "build or copy the pack again; its files must match its manifest",
    "OVERLOADED": "try again after the hint, more slowly",
    "DEADLINE_EXCEEDED": "allow more time, or see which hop took it: mortise trace TRACE_ID",
    "QUOTA_EXCEEDED": "wait, or raise the limits policy: mortise policies",
    "CANCELLED": "send it again if it is still wanted",
    "UNAVAILABLE": "a process restarts; try again, or see which one: mortise status",
    "PERMISSION_DENIED": "give this uid the role in [access] of mortise.toml",
    "POLICY_INVALID": "correct the policy that is named; those in force: mortise policies",
    "VERSION_CONFLICT": "someone else committed: look at mortise commits, then apply again",
    "PROOF_FAILED": "correct the contract property that is named",
    "DISK_FULL": "free space on the disk of the home",
    "POLICY_REJECTED": "see the instance that is named: mortise status, mortise logs",
    "TRACE_UNKNOWN": "check the id; receipts arrive within a second of their answer",
    "INTERNAL": "a defect of ours; the log has it: mortise logs --trace TRACE_ID",
}


def remedy(error: MortiseError) -> str:
    """The next step, with the error's own trace id where the step needs one."""
    if isinstance(error, MeshDown):
        return error.remedy
    return REMEDIES.get(error.name, "").replace("TRACE_ID", error.trace_id or "TRACE_ID")
