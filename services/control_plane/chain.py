"""The commit log as a hash chain: canonical bytes, replay to a version or instant, verification.

Pure: no database, no clock. A stored entry is the canonical bytes and their sha256; the bytes
name the hash of the entry before. The bytes are never encoded again, so an entry keeps its hash
when a later release gives a policy a new field.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from contracts.control import Commit
from contracts.policies import VERSION_0, Policy, PolicySet, kind_of
from contracts.signing import Signature
from contracts.types import UNSET, Open, UnsetType

GENESIS = "sha256:" + hashlib.sha256(b"").hexdigest()
"""What the first entry names as its previous one; also the hash of version 0."""

_EPOCH = datetime.fromtimestamp(0, UTC)
Key = tuple[str, str]
"""A policy's kind and name."""


class Entry(Open, frozen=True, kw_only=True):
    """What is hashed: a commit without its own hash."""

    version: int
    previous: str
    at: str
    author: str
    reason: str
    peer_uid: int
    changed: list[Policy]
    removed: list[Key]
    policy: str
    signed: Signature | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A row of the log: the hash, and the canonical bytes that it is the hash of."""

    version: int
    hash: str
    content: bytes


_decode = msgspec.json.Decoder(Entry).decode


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: one value, one text."""
    return msgspec.json.encode(value, order="sorted")


def hash_of(content: bytes) -> str:
    """The digest of canonical bytes."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def store(entry: Entry) -> StoredEntry:
    """The row that records an entry."""
    content = canonical(entry)
    return StoredEntry(entry.version, hash_of(content), content)


def load(stored: StoredEntry) -> Entry:
    """The entry of a row. Raises msgspec.DecodeError when its bytes are no entry."""
    return _decode(stored.content)


def commit_of(stored: StoredEntry) -> Commit:
    """The row as operators see it."""
    entry = load(stored)
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return Commit(commit=stored.hash, **fields)


def key_of(policy: Policy) -> Key:
    """Where a policy stands in a set."""
    return kind_of(policy), policy.name


def change(before: PolicySet, changed: Iterable[Policy], removed: Iterable[Key] = ()) -> PolicySet:
    """The next set: policies put in, taken out, sorted by kind and name."""
    table = {key_of(policy): policy for policy in before.policies}
    table |= {key_of(policy): policy for policy in changed}
    for key in removed:
        table.pop(key, None)
    return PolicySet(version=before.version + 1, policies=[table[key] for key in sorted(table)])


def replay(
    log: Iterable[StoredEntry],
    *,
    version: int | None = None,
    instant_us: int | None = None,
    since: PolicySet = VERSION_0,
) -> PolicySet:
    """The set in force at a version (None: the last) or at an instant: the last entry not after
    it. `log` begins behind `since`; times in it never go back."""
    policies = since
    for stored in log:
        entry = load(stored)
        if version is not None and entry.version > version:
            break
        if instant_us is not None and parse_instant(entry.at) > instant_us:
            break
        policies = change(policies, entry.changed, entry.removed)
    return policies


@dataclass(frozen=True, slots=True)
class Verdict:
    """The chain up to `head`; `broken_at` is the first entry that lies, and why."""

    commits: int = 0
    head: str = GENESIS
    broken_at: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET


def verify(log: Iterable[StoredEntry], so_far: Verdict = Verdict()) -> Verdict:
    """Walk on along the chain and stop at the first entry that lies."""
    verdict = so_far
    for stored in log:
        expected = verdict.commits + 1
        fault = _fault(stored, expected, verdict.head)
        if fault is not None:
            return replace(verdict, broken_at=expected, reason=fault)
        verdict = Verdict(expected, stored.hash)
    return verdict


def _fault(stored: StoredEntry, expected: int, head: str) -> str | None:
    found = hash_of(stored.content)
    if found != stored.hash:
        return f"the entry's content has hash {found}, recorded is {stored.hash[:71]}"
    try:
        entry = load(stored)
    except (msgspec.MsgspecError, RecursionError) as error:
        return f"the entry cannot be read: {error}"
    if stored.version != expected or entry.version != expected:
        return f"version {expected} is expected here, the entry is version {entry.version}"
    if entry.previous != head:
        return f"the entry follows {entry.previous}, but before it stands {head}"
    return None


def parse_instant(text: str) -> int:
    """Microseconds since 1970 of an RFC 3339 instant with offset. Raises ValueError."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an RFC 3339 instant") from error
    if instant.tzinfo is None:
        raise ValueError(f"{text!r} has no offset; add Z or +hh:mm")
    return (instant - _EPOCH) // timedelta(microseconds=1)


def format_instant(instant_us: int) -> str:
    """Microseconds since 1970 as RFC 3339 in UTC, always with six decimals."""
    instant = _EPOCH + timedelta(microseconds=instant_us)
    return instant.isoformat(timespec="microseconds").replace("+00:00", "Z")
