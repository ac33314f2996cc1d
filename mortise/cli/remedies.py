"""What a person can do about each error. Pure."""

import re
import shlex
from pathlib import Path

from mortise.errors import MortiseError
from mortise.generated import DeadlineExceeded
from mortise.retry import MeshDown

REMEDIES = {
    "TOKENIZER_INVALID_INPUT": "send valid UTF-8 text of 1..8,192 characters",
    "INVALID_REQUEST": (
        "what the model takes: mortise contracts show MODEL; every field: mortise contracts show"
    ),
    "METHOD_UNKNOWN": "the methods of every socket: mortise contracts show",
    "INPUT_TOO_LONG": "shorten the input; the model's limits: mortise contracts show MODEL",
    "FEATURE_INVALID": "the contract of every column: mortise features show",
    "FEATURE_FROZEN": "try again after the hint; which features are frozen: mortise features show",
    "FEATURE_STALE": "bring the view's sources up to date; its SLA: mortise features show",
    "VIEW_UNKNOWN": "the views that are loaded: mortise features show",
    "MODEL_UNKNOWN": "the models of this mesh: mortise models",
    "MODEL_NOT_READY": "wait for it, or see why it fails: mortise models, mortise logs",
    "OUTPUT_INVALID": "the model broke its own contract; its other versions: mortise models",
    "MEMORY_EXHAUSTED": "send fewer rows at once, or raise [runtime] memory_mib_max",
    "FORWARD_FAILED": "the model's own error is in the log: mortise logs --trace TRACE_ID",
    "PACK_INVALID": "build or copy the pack again; its files must match its manifest",
    "OVERLOADED": "try again after the hint, more slowly",
    "DEADLINE_EXCEEDED": "allow more time; what was logged of it: mortise logs --trace TRACE_ID",
    "QUOTA_EXCEEDED": "wait, or raise the limits policy: mortise policies",
    "CANCELLED": "send it again if it is still wanted",
    "UNAVAILABLE": "a process restarts; try again, or see which one: mortise status",
    "PERMISSION_DENIED": "give this uid the role in [access] of mortise.toml",
    "RULE_REFUSED": "the rule that is named decides this; those in force: mortise policies",
    "POLICY_INVALID": "correct the policy that is named; those in force: mortise policies",
    "VERSION_CONFLICT": "someone else committed: look at mortise commits, then apply again",
    "PROOF_FAILED": "correct the contract property that is named",
    "DISK_FULL": "free space on the disk of the home",
    "POLICY_REJECTED": "see the instance that is named: mortise status, mortise logs",
    "TRACE_UNKNOWN": (
        "what failed or was refused may have log records alone: mortise logs --trace ASKED_ID;"
        " a receipt arrives within a second of its answer; else check the id"
    ),
    "INTERNAL": "a defect of ours; the log has it: mortise logs --trace TRACE_ID",
}

_MODEL_FILE = "correct model.toml; its keys, and what a model must keep to: docs/backends.md"
OF_COMMAND = {
    ("pack", "PACK_INVALID"): "change what the message names, and pack it again: docs/backends.md",
    ("pack", "INVALID_REQUEST"): _MODEL_FILE,
    ("apply", "INVALID_REQUEST"): "correct the file; each kind of policy: docs/policies.md",
}
"""Where a command's own step is nearer than that of `REMEDIES`."""


def remedy_of(name: str, command: str = "") -> str:
    """The next step after an error of this name in this command."""
    return OF_COMMAND.get((command, name)) or REMEDIES.get(name, "")


_UNDEPLOYED = re.compile(
    r"(?P<model>[\w.\-]+)(?: (?:version )?(?P<version>[1-9][0-9]*))?"
    r" (?:is not deployed|has no route)"
)
"""In a MODEL_NOT_READY: what no waiting changes, and of which model and version it is said."""


def remedy(error: MortiseError, command: str = "") -> str:
    """The next step, with the error's own trace id where the step needs one."""
    if isinstance(error, MeshDown):
        return error.remedy
    if isinstance(error, DeadlineExceeded) and "hop" in error.details:
        stage = f" (stage {error.details['stage']})" if "stage" in error.details else ""
        return f"allow more time; it ran out at {error.details['hop']}{stage}: mortise status"
    line = remedy_of(error.name, command)
    if error.name == "POLICY_REJECTED" and "roles" in error.details:
        pack = f" --pack {error.details['pack']}" if "pack" in error.details else ""
        line = f"what is to be signed: mortise contracts show{pack}"
    elif error.name == "POLICY_REJECTED" and error.retry_after_ms is not None:
        line = "it passes by itself: try again in a second; the instance that is named: "
        line += "mortise status"
    elif error.name == "VERSION_CONFLICT" and "digest" in error.details:
        line = "read the page again before it is signed: mortise contracts show"
    elif error.name == "MODEL_NOT_READY" and (found := _UNDEPLOYED.search(error.message)):
        model, version = found["model"], found["version"] or "VERSION"
        line = f"bring it into service: mortise promote {model} {version}; to have it loaded"
        line += " without routing to it, commit a deployment policy: mortise apply FILE"
    elif error.name == "TRACE_UNKNOWN":
        line = line.replace("ASKED_ID", str(error.details.get("asked", "ID")))
    if not error.trace_id:
        return line.replace(" --trace TRACE_ID", "")
    return line.replace("TRACE_ID", error.trace_id)


_COMMAND = re.compile(
    r"\bmortise (?:(?:contracts|features) \w+|start|stop|restart|status|doctor|call|models|pack"
    r"|publish|promote|rollback|policies|apply|remove|commits|diff|verify|trace|snapshot|logs)\b"
)
"""All that take a home which exists."""


def with_home(line: str, home: Path | None) -> str:
    """The same with `--home` after each command, so that it can be pasted; `home` as the user gave
    it, None when it was the default."""
    if home is None or "--home " in line:
        return line
    return _COMMAND.sub(lambda found: f"{found[0]} --home {shlex.quote(str(home))}", line)
