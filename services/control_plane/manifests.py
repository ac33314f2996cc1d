"""Manifests of staged packs, read for the cross rules and for snapshots. Blocks on the disk."""

from collections.abc import Iterable
from pathlib import Path

from contracts.errors import MeshError
from contracts.pack import Manifest
from shared.packs import read_manifest


def read_packs(models_dir: Path, digests: Iterable[str]) -> dict[str, Manifest | str]:
    """The manifest of each pack, or why it cannot be read."""
    packs: dict[str, Manifest | str] = {}
    for digest in digests:
        try:
            packs[digest] = read_manifest(models_dir, digest)
        except MeshError as error:
            packs[digest] = error.message
    return packs
