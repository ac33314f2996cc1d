"""Packs: what was written is what is read, and nothing else is."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.errors import MeshError
from contracts.pack import Manifest
from services.jobs.bench_packs import sleepy, tiny
from services.jobs.bench_tokens import wordy
from services.jobs.pack_writer import write_pack
from shared.clock import ManualClock
from shared.pack_cache import VerifiedCache, settled_s
from shared.pack_digests import canonical, pack_digest, sha256, weights_digest
from shared.packs import pack_path, read_manifest, read_view, verify

COMMITTED = Path(__file__).parents[3] / "examples/bench/models"
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A writable copy of a freshly written pack."""
    digest = write_pack(tiny(), tmp_path / "models")
    path = tmp_path / "copy"
    shutil.copytree(pack_path(tmp_path / "models", digest), path)
    for file in path.iterdir():
        file.chmod(0o644)
    return path


def rewrite(pack: Path, change: Change) -> None:
    """Change the manifest as an attacker would who recomputes the root over the tensors."""
    file = pack / "manifest.json"
    manifest = json.loads(file.read_bytes())
    change(manifest)
    file.write_text(json.dumps(manifest))


def refusal(pack: Path, digest: str | None = None) -> str:
    """The message with which the pack is refused."""
    with pytest.raises(MeshError) as caught:
        verify(pack, digest)
    assert caught.value.name == "PACK_INVALID"
    return caught.value.message


@pytest.mark.parametrize("draft", [tiny, sleepy, wordy])
def test_the_committed_bench_packs_come_from_their_command(draft: Any, tmp_path: Path) -> None:
    """Writing a bench pack again gives the digest that is committed, and the same bytes."""
    digest = write_pack(draft(), tmp_path)
    made, committed = pack_path(tmp_path, digest), pack_path(COMMITTED, digest)
    assert sorted(os.listdir(made)) == sorted(os.listdir(committed))
    assert all(
        (made / name).read_bytes() == (committed / name).read_bytes() for name in os.listdir(made)
    )


def test_a_pack_verifies_and_reads_back(tmp_path: Path) -> None:
    """The digest names the pack; verify and read_manifest agree on what is in it."""
    digest = write_pack(tiny(), tmp_path)
    manifest = verify(pack_path(tmp_path, digest), digest)
    assert manifest == read_manifest(tmp_path, digest)
    assert pack_digest(manifest) == digest
    assert weights_digest(manifest.tensors) == manifest.weights
    assert manifest.contract == tiny().contract


def test_a_staged_pack_is_read_only(tmp_path: Path) -> None:
    """No file of a staged pack can be written by mistake."""
    path = pack_path(tmp_path, write_pack(tiny(), tmp_path))
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o444}


def test_one_flipped_bit_of_a_weight_is_found(pack: Path) -> None:
    """The last bit of the weights file counts."""
    file = pack / "weights.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert "weights.safetensors has digest" in refusal(pack)


def test_a_tampered_tensor_is_named_even_under_a_matching_file_digest(pack: Path) -> None:
    """Each tensor is hashed on its own: an altered one is named."""
    file = pack / "weights.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    rewrite(pack, lambda m: m["files"][0].update(digest=sha256(bytes(content))))
    assert "tensor 'layers.1.weight' has digest" in refusal(pack)


def test_a_truncated_file_is_found(pack: Path) -> None:
    """A pack that was cut in transfer is refused with both lengths."""
    os.truncate(pack / "weights.safetensors", 1_000)
    assert "is 1000 bytes, expected 8888" in refusal(pack)


def test_a_missing_and_an_unexpected_file_are_found(pack: Path) -> None:
    """The folder holds exactly what the manifest names."""
    (pack / "extra.py").write_text("print()")
    assert "'extra.py' is unexpected" in refusal(pack)
    (pack / "extra.py").unlink()
    (pack / "weights.safetensors").unlink()
    assert "'weights.safetensors' is missing" in refusal(pack)


def test_a_changed_manifest_is_another_pack(pack: Path) -> None:
    """Any field of the manifest is under the root: the expected digest no longer fits."""
    digest = pack_digest(verify(pack))
    rewrite(pack, lambda m: m["provenance"].update(seed=7))
    assert f"expected {digest}" in refusal(pack, digest)


@pytest.mark.parametrize("path", ["../weights.safetensors", "/etc/passwd", "a/b", ".hidden", ""])
def test_a_path_out_of_the_pack_is_refused(pack: Path, path: str) -> None:
    """File names are plain: nothing outside the folder is ever opened."""
    rewrite(pack, lambda m: m["files"][0].update(path=path))
    assert "not a plain name" in refusal(pack)


def test_a_link_is_not_followed(pack: Path, tmp_path: Path) -> None:
    """A file of the pack that is a symbolic link is refused, whatever it points to."""
    file = pack / "weights.safetensors"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert "cannot be opened" in refusal(pack)


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    """An empty folder and an absent one are no packs."""
    assert "cannot be opened" in refusal(tmp_path)
    assert "cannot be opened" in refusal(tmp_path / "absent")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.update(format=2), "format"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m["tensors"][0].update(datatype="FP64"), "takes 256 bytes"),
        (lambda m: m["tensors"][0].update(datatype="BYTES"), "no fixed size"),
        (lambda m: m["tensors"][0].update(shape=[-32]), "negative"),
        (lambda m: m["tensors"][0].update(offset=1 << 40), "outside its file"),
        (lambda m: m["tensors"][0].update(offset=-8), "outside its file"),
        (lambda m: m["tensors"][0].update(file="other"), "not in the pack"),
        (lambda m: m["tensors"].append(m["tensors"][0]), "overlap"),
        (lambda m: m["tensors"][0].update(name="renamed"), "the tensors' root is"),
        (lambda m: m["files"].append(m["files"][0]), "appears twice"),
        (lambda m: m["contract"]["inputs"][0].update(shape=[4, 64]), "stands first"),
        (lambda m: m["contract"].update(outputs=[]), "no output"),
        (lambda m: m["contract"].update(inputs=[]), "neither inputs nor a view"),
        (lambda m: m["contract"].update(labels=["a", "b"]), "a classifier's"),
        (lambda m: m["contract"].update(task="classifier"), "at least 2 labels"),
    ],
)
def test_a_manifest_that_breaks_a_rule_is_refused(pack: Path, change: Change, reason: str) -> None:
    """Each rule is provoked; its sentence says what was found."""
    rewrite(pack, change)
    assert reason in refusal(pack)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c["inputs"][0].update(shape=[-1, 8]), "input_ids is INT64 or INT32 [-1, -1]"),
        (lambda c: c["inputs"][1].update(datatype="FP32"), "received FP32"),
        (lambda c: c["inputs"].reverse(), "received attention_mask, input_ids"),
        (lambda c: c["inputs"][1].update(name="mask"), "received input_ids, mask"),
        (lambda c: c["tokens"].update(pad_id=512), "pad_id 512 is outside the vocabulary of 512"),
        (lambda c: c["outputs"][0].update(shape=[-1, -1]), "stands first"),
        (lambda c: c.pop("tokens"), "stands first"),
    ],
)
def test_a_token_model_that_breaks_a_rule_is_refused(
    tmp_path: Path, change: Change, reason: str
) -> None:
    """What its inputs are called, and their shapes; only they have a second −1."""
    pack = pack_path(tmp_path, write_pack(wordy(), tmp_path))
    rewrite(pack, lambda manifest: change(manifest["contract"]))
    assert reason in refusal(pack)


def test_a_type_that_differs_from_the_files_own_index_is_refused(pack: Path) -> None:
    """A manifest may not read FP32 weights as INT32, even with a consistent root."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["tensors"][0]["datatype"] = "INT32"
        tensors = msgspec.convert(manifest, Manifest).tensors
        manifest["weights"] = weights_digest(tensors)

    rewrite(pack, change)
    assert "('INT32', [32], 304) in manifest.json and ('FP32', [32], 304)" in refusal(pack)


def test_a_default_field_does_not_move_the_digest() -> None:
    """What holds its default is not hashed, so a new optional field leaves old packs alone."""
    assert b"labels" not in canonical(tiny().contract)
    assert canonical({"b": 1, "a": [2.0]}) == b'{"a":[2.0],"b":1}'


def test_a_model_without_a_view_has_no_view_text(tmp_path: Path) -> None:
    """Asking for the SQL of a tensor model says so."""
    digest = write_pack(tiny(), tmp_path)
    with pytest.raises(MeshError, match="has no view"):
        read_view(tmp_path, digest)


def test_weights_are_hashed_once_per_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recorded pack is not read again; touching a file makes it be read again."""
    digest = write_pack(tiny(), tmp_path)
    path = pack_path(tmp_path, digest)
    clock = ManualClock(wall_s=max(file.stat().st_ctime for file in path.iterdir()))
    cache = VerifiedCache(tmp_path, tmp_path / "verified", clock)
    hashed: list[Path] = []
    monkeypatch.setattr(
        "shared.pack_cache.verify", lambda path, digest: hashed.append(path) or verify(path, digest)
    )
    cache.verify(digest)
    cache.verify(digest)
    assert len(hashed) == 2, "just written: its identity cannot be trusted yet"
    clock.advance(settled_s + 0.01)
    cache.verify(digest)
    cache.verify(digest)
    assert len(hashed) == 3
    os.utime(path / "weights.safetensors")
    VerifiedCache(tmp_path, tmp_path / "verified", clock).verify(digest)
    assert len(hashed) == 4
