"""Sticky shares of a model's requests: a key's slot falls into one version's range. Pure.

Invariant: versions with a share stand in numeric order, each owning a range of the SLOTS. So
shares are nested: a version that grows at its neighbour's cost takes exactly the slots at their
border, and every other key stays where it is; the keys that a version has at 1 % are among those
that it has at 10 %. Neighbours are versions with no third one's share between; with two versions
every change is between neighbours. With three or more no rule that knows only the shares can move
the least for every pair of them: docs/routing.md has the reason.
"""

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from contracts.inference import InferenceRequest
from contracts.policies import SLOTS, SplitSpec
from contracts.types import UNSET


@dataclass(frozen=True, slots=True)
class Split:
    """The ranges of one split; `shadow` is the version that gets copies of `shadow_slots`."""

    salt: str
    key: str
    versions: list[str]
    bounds: list[int]
    shadow: str
    shadow_slots: int

    @classmethod
    def of(cls, spec: SplitSpec) -> "Split":
        """Versions in numeric order, each with the end of its range."""
        versions = sorted(spec.shares, key=int)
        bounds = list(accumulate(spec.shares[version] for version in versions))
        shadow, slots = "", 0
        if spec.shadow is not UNSET:
            shadow, slots = spec.shadow.version, spec.shadow.slots
        return cls(spec.salt, spec.key, versions, bounds, shadow, slots)

    def choose(self, key: str) -> tuple[str, bool]:
        """The version of this key, the same as long as the shares stay; and whether a copy goes to
        the shadow, which does not depend on the version."""
        number = number_of(self.salt, key)
        version = self.versions[bisect_right(self.bounds, number % SLOTS)]
        return version, number // SLOTS % SLOTS < self.shadow_slots

    def key_of(self, body: InferenceRequest, trace_id: str) -> str:
        """What sticks: an absent entity falls back to the trace, so that shares still hold."""
        if self.key == "tenant":
            return body.tenant_id
        if self.key == "entity" and body.entity is not UNSET:
            return body.entity
        return trace_id


def number_of(salt: str, key: str) -> int:
    """64 bits that look random: blake2b of salt, a line feed and the key, big-endian."""
    digest = hashlib.blake2b(f"{salt}\n{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
