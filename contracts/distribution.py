"""How policies reach the processes: subscribe, prepare, acknowledge, activate, report.

(epoch, sequence, hash) of an instance never goes back. `epoch` grows when the control plane's
database is replaced or restored, `sequence` with every commit; `hash` is the commit's.
"""

from typing import Annotated, Literal

from msgspec import Meta

from contracts.pack import LoadedModel
from contracts.policies import PolicySet
from contracts.types import UNSET, Digest, Label, Open, TraceId, UnsetType

Service = Literal["data_fabric", "model_runtime", "orchestrator", "control_plane"]


class Position(Open, frozen=True, kw_only=True):
    """A place in the commit log."""

    epoch: Annotated[int, Meta(ge=0)]
    sequence: Annotated[int, Meta(ge=0)]
    hash: Digest


class Subscribe(Open, frozen=True, kw_only=True):
    """`subscribe`: follow the policies from the last known position. Streams `PolicyItem`s until
    the connection closes; the first one activates the current version."""

    service: Service
    instance: Label
    position: Position | UnsetType = UNSET


class PolicyItem(Open, frozen=True, kw_only=True):
    """One step: `prepare` carries the candidate set; `activate` names a prepared one, or carries
    the set for an instance that was absent; `abandon` drops a prepared one. `trace_id` is that of
    the call that commits, for the logs of everybody it reaches."""

    action: Literal["prepare", "activate", "abandon"]
    position: Position
    policies: PolicySet | UnsetType = UNSET
    trace_id: TraceId | UnsetType = UNSET


class Subscribed(Open, frozen=True, kw_only=True):
    """The subscription ended (drain)."""

    reason: str


class Acknowledge(Open, frozen=True, kw_only=True):
    """`acknowledge`: this instance checked the candidate and stored it (valid), refuses it
    (invalid, with the reason), or has it in force and on disk (active)."""

    instance: Label
    position: Position
    state: Literal["valid", "invalid", "active"]
    reason: str | UnsetType = UNSET


class ViewState(Open, frozen=True, kw_only=True):
    """A view version as the fabric holds it."""

    name: str
    version: str
    digest: Digest
    state: Literal["loading", "ready", "failed"]
    reason: str | UnsetType = UNSET


class Report(Open, frozen=True, kw_only=True):
    """`report`, each half second: what this instance holds. Standbys are not required; one that is
    `leaving` as planned says so in its last report and is not required any more either."""

    service: Service
    instance: Label
    index: int
    role: Literal["active", "standby"]
    position: Position | UnsetType = UNSET
    ready: bool
    infra: Digest
    restarts: int = 0
    models: list[LoadedModel] = []
    views: list[ViewState] = []
    leaving: bool = False


class Reported(Open, frozen=True, kw_only=True):
    """The control plane's position, so that a lagging instance notices."""

    position: Position
