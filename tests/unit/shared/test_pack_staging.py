"""Staging: whole or not at all."""

import fcntl
import os
from pathlib import Path

import pytest

from contracts.errors import MeshError
from services.jobs.bench_packs import sleepy, tiny
from services.jobs.pack_writer import write_pack
from shared import pack_staging
from shared.pack_staging import stage
from shared.packs import pack_path, verify


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A pack to stage."""
    return pack_path(tmp_path / "source", write_pack(tiny(), tmp_path / "source"))


def test_stage_says_its_steps_and_a_second_time_finds_it(source: Path, tmp_path: Path) -> None:
    """The first stage copies; the second verifies what is there."""
    steps: list[str] = []
    digest, manifest = stage(source, tmp_path / "models", steps.append)
    assert steps == ["verify", "copy", "verify_copy", "rename"]
    assert verify(pack_path(tmp_path / "models", digest), digest) == manifest
    steps.clear()
    assert stage(source, tmp_path / "models", steps.append) == (digest, manifest)
    assert steps == ["verify", "present"]


@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_files_of_any_size_are_copied_whole(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: int
) -> None:
    """In pieces: one byte less than a piece, exactly one, one more."""
    size = (source / "weights.safetensors").stat().st_size
    monkeypatch.setattr(pack_staging, "copy_bytes", size + beside)
    digest, _ = stage(source, tmp_path / "models")
    verify(pack_path(tmp_path / "models", digest), digest)


@pytest.mark.parametrize("step", ["copy", "verify_copy", "rename"])
def test_a_stage_that_fails_leaves_nothing(source: Path, tmp_path: Path, step: str) -> None:
    """Whatever the step, no pack and no leftover appears."""

    def fail(reached: str) -> None:
        if reached == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage(source, tmp_path / "models", fail)
    assert os.listdir(tmp_path / "models") == []


def test_what_a_killed_stage_left_is_removed_by_the_next(source: Path, tmp_path: Path) -> None:
    """A half copy that `kill -9` left aside is not taken for a pack, and goes."""
    half = tmp_path / "models" / ".staging-0123"
    half.mkdir(parents=True)
    (half / "weights.safetensors").write_bytes(b"half")
    digest, _ = stage(source, tmp_path / "models")
    assert os.listdir(tmp_path / "models") == [digest.removeprefix("sha256:")]


def test_an_invalid_pack_is_not_staged(source: Path, tmp_path: Path) -> None:
    """A pack that does not verify touches nothing."""
    (source / "weights.safetensors").unlink()
    with pytest.raises(MeshError, match="PACK_INVALID"):
        stage(source, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_an_altered_pack_under_the_target_name_is_found(source: Path, tmp_path: Path) -> None:
    """Staging over an existing folder verifies it instead of trusting its name."""
    digest, _ = stage(source, tmp_path / "models")
    weights = pack_path(tmp_path / "models", digest) / "weights.safetensors"
    weights.chmod(0o644)
    weights.write_bytes(b"")
    with pytest.raises(MeshError, match="is 0 bytes"):
        stage(source, tmp_path / "models")


def test_two_stages_at_once_are_refused(source: Path, tmp_path: Path) -> None:
    """While another process holds the folder, the second is told to come again."""
    models = tmp_path / "models"
    models.mkdir()
    other = os.open(models, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(MeshError, match="another process is staging") as caught:
        stage(source, models)
    os.close(other)
    assert caught.value.retry_after_ms == 1_000
    assert stage(source, models)[0]


def test_a_pack_without_weights_is_a_pack(tmp_path: Path) -> None:
    """`sleepy` has no tensor and no file but its manifest."""
    digest = write_pack(sleepy(), tmp_path)
    assert os.listdir(pack_path(tmp_path, digest)) == ["manifest.json"]
    assert pack_staging.stage(pack_path(tmp_path, digest), tmp_path / "models")[0] == digest
