"""What the record of verified packs tells of its own work."""

import time
from pathlib import Path

import pytest

from contracts.errors import MeshError
from services.jobs.bench_packs import sleepy, tiny
from services.jobs.pack_writer import write_pack
from shared.clock import ManualClock
from shared.pack_cache import VerifiedCache
from shared.packs import pack_path


def test_hashing_is_told_once_and_not_where_a_record_spares_it(tmp_path: Path) -> None:
    """The first process says how long it took, one that starts later hashes nothing."""
    clock = ManualClock(wall_s=time.time() + 60)
    digest = write_pack(tiny(), tmp_path / "models")
    first = VerifiedCache(tmp_path / "models", tmp_path / "verified", clock)
    first.verify(digest)
    assert "edd78ff1" in digest
    assert list(first._hashed_us) == [digest]
    first.hashed_us(digest)
    assert first.hashed_us(digest) == 0
    second = VerifiedCache(tmp_path / "models", tmp_path / "verified", clock)
    second.verify(digest)
    assert second._hashed_us == {}


def test_a_pack_that_is_known_is_looked_at_again(tmp_path: Path) -> None:
    """Its manifest is not parsed a second time, its files are: a changed one is found."""
    digest = write_pack(sleepy(), tmp_path / "models")
    other = write_pack(tiny(), tmp_path / "models")
    cache = VerifiedCache(tmp_path / "models", tmp_path / "verified")
    assert cache.verify(digest)[0] is cache.verify(digest)[0]
    cache.verify(other)
    weights = pack_path(tmp_path / "models", other) / "weights.safetensors"
    weights.chmod(0o600)
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(MeshError, match="digest"):
        cache.verify(other)
