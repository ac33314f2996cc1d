"""What a commit changes, who asks for it, and what came of it. Pure."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from contracts.policies import Policy, PolicySet
from contracts.signing import Signature
from contracts.types import UNSET, UnsetType
from services.control_plane.chain import Entry, Key, StoredEntry, format_instant, store

reason_characters_max = 1_024


@dataclass(frozen=True, slots=True)
class Change:
    """Policies to put in, (kind, name) of those to take out, and what is signed off.
    `needs_sign_offs`: not what begins a log or brings back what was in force before."""

    changed: list[Policy]
    removed: list[Key] = field(default_factory=list)
    signed: Signature | UnsetType = UNSET
    needs_sign_offs: bool = True


@dataclass(frozen=True, slots=True)
class Author:
    """Who asks, as claimed and as the kernel says, why, and under which trace id ("" = none)."""

    name: str
    reason: str
    peer_uid: int
    trace_id: str = ""

    def because(self, step: str) -> "Author":
        """The same with a step of what is being done as further reason."""
        return replace(self, reason=f"{self.reason}: {step}")


@dataclass(frozen=True, slots=True)
class Committed:
    """The version in force afterwards, and the required instances that do not have it yet;
    `is_new` when it came of this change."""

    version: int
    commit: str
    fenced: list[str]
    is_new: bool


Make = Callable[[PolicySet], Change | None]
"""From the set in force to what changes in it; None: nothing to do."""


def entry_of(
    previous: str, after: PolicySet, change: Change, author: Author, at_us: int
) -> StoredEntry:
    """The log's row for a change that leads to `after`."""
    return store(
        Entry(
            version=after.version,
            previous=previous,
            at=format_instant(at_us),
            author=author.name,
            reason=author.reason[:reason_characters_max],
            peer_uid=author.peer_uid,
            changed=change.changed,
            removed=change.removed,
            policy=after.digest(),
            signed=change.signed,
        )
    )
