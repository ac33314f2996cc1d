"""Packs verified once: a record per pack of the files' identities at the time they were hashed.

The record lies in the home (`.mortise/verified/<hex>.json`), so a restarted process does not hash
gigabytes again. It proves nothing against the home's owner, who is trusted.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from contracts.pack import Manifest
from shared.clock import SYSTEM, Clock
from shared.packs import Identity, identify, pack_path, read_manifest, verify

settled_s = 0.1
"""A file changed less than this ago is not recorded: the kernel stamps times in steps of up to
10 ms (one tick at 100 Hz), so a later write in the same step would leave the same identity."""

manifests_max = 4
"""Kept parsed: a load looks at its pack's twice."""

_decode = msgspec.json.Decoder(dict[str, Identity]).decode


class VerifiedCache:
    """`verify` that reads the weights only when a file's identity is not the recorded one.

    Any process of the home may use it at the same time: a record is written aside and renamed.
    """

    def __init__(self, models_dir: Path, records_dir: Path, clock: Clock = SYSTEM) -> None:
        self._models_dir = models_dir
        self._records_dir = records_dir
        self._clock = clock
        self._manifests: dict[str, Manifest] = {}
        self._hashed_us: dict[str, int] = {}

    def hashed_us(self, digest: str) -> int:
        """How long this process hashed the pack, told once; 0 when a record spared it that."""
        return self._hashed_us.pop(digest, 0)

    def verify(self, digest: str) -> tuple[Manifest, Mapping[str, Identity]]:
        """The manifest of a staged pack whose every byte was hashed, now or earlier, and the
        identities of the files that this holds for. Raises PACK_INVALID."""
        path = pack_path(self._models_dir, digest)
        manifest = self._manifest(digest)
        before = identify(path, manifest)
        if before == self._recorded(path.name):
            return manifest, before
        begun_us = self._clock.monotonic_us()
        verify(path, digest)
        self._hashed_us = {digest: self._clock.monotonic_us() - begun_us}  # of the last alone
        if identify(path, manifest) == before and self._is_settled(before):
            self._record(path.name, before)
        return manifest, before

    def _manifest(self, digest: str) -> Manifest:
        """What the digest says for ever; the last few are not parsed again."""
        manifest = self._manifests.pop(digest, None) or read_manifest(self._models_dir, digest)
        self._manifests[digest] = manifest
        while len(self._manifests) > manifests_max:
            del self._manifests[next(iter(self._manifests))]
        return manifest

    def _is_settled(self, identities: Mapping[str, Identity]) -> bool:
        newest_s = max(identity.ctime_ns for identity in identities.values()) / 1e9
        return self._clock.wall() - newest_s > settled_s

    def _recorded(self, name: str) -> Mapping[str, Identity] | None:
        try:
            return _decode((self._records_dir / f"{name}.json").read_bytes())
        except (OSError, msgspec.MsgspecError):
            return None  # no record, or not a readable one: the pack is hashed

    def _record(self, name: str, identities: Mapping[str, Identity]) -> None:
        self._records_dir.mkdir(parents=True, exist_ok=True)
        aside = self._records_dir / f".{name}.{os.getpid()}"
        aside.write_bytes(msgspec.json.encode(identities))
        aside.rename(self._records_dir / f"{name}.json")
