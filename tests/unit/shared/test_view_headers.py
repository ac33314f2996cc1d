"""The header of the view inside a staged pack, or PACK_INVALID."""

import shutil
from pathlib import Path

import msgspec
import pytest

from contracts.errors import MeshError
from contracts.pack import Manifest
from contracts.types import UNSET
from shared.pack_digests import pack_digest, sha256
from shared.packs import pack_path, read_manifest
from shared.view_headers import read_pack_header

MODELS = Path(__file__).parents[3] / "examples/flights/models"


def flights() -> str:
    """A pack of the flights home that has a view."""
    for folder in sorted(MODELS.iterdir()):
        digest = f"sha256:{folder.name}"
        if read_manifest(MODELS, digest).contract.view is not UNSET:
            return digest
    raise AssertionError("the flights home has packs with a view")


def with_view(models: Path, text: str) -> str:
    """The same pack with another view.sql, as its own digests say."""
    first = flights()
    manifest = read_manifest(MODELS, first)
    view = manifest.contract.view
    assert view is not UNSET
    encoded = text.encode()
    contract = msgspec.structs.replace(
        manifest.contract, view=msgspec.structs.replace(view, digest=sha256(encoded))
    )
    files = [
        msgspec.structs.replace(file, bytes=len(encoded), digest=sha256(encoded))
        if file.path == "view.sql"
        else file
        for file in manifest.files
    ]
    made: Manifest = msgspec.structs.replace(manifest, contract=contract, files=files)
    digest = pack_digest(made)
    folder = pack_path(models, digest)
    shutil.copytree(pack_path(MODELS, first), folder)
    for name, content in (("manifest.json", msgspec.json.encode(made)), ("view.sql", encoded)):
        (folder / name).unlink()
        (folder / name).write_bytes(content)
    return digest


def test_the_header_of_a_pack_is_read() -> None:
    """Name, event time and the contract of each field, as the data fabric reads them."""
    header = read_pack_header(MODELS, flights())
    assert (header.name, header.event_time, header.entity) == (
        "departure", "scheduled_at", "tailnum",
    )  # fmt: skip
    assert header.request["origin"].values == ["EWR", "JFK", "LGA"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("SELECT 1", "begins with no"),
        ("/* mortise name = */ SELECT 1", "header of view.sql"),
        ('/* mortise\nname = "departure"\n*/ SELECT 1', "missing required field"),
    ],
    ids=["none", "no TOML", "not whole"],
)
def test_another_text_is_refused(tmp_path: Path, text: str, word: str) -> None:
    """PACK_INVALID names the pack and what is wrong."""
    digest = with_view(tmp_path, text)
    with pytest.raises(MeshError, match=word) as refusal:
        read_pack_header(tmp_path, digest)
    assert refusal.value.name == "PACK_INVALID"
    assert digest in refusal.value.message
