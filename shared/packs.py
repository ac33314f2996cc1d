"""Packs on disk: where they lie, reading a manifest, verifying every byte. No torch, no mapping.

Layout: `models/<64 hex digits of the pack's digest>/` holds `manifest.json` and the files that it
names, nothing else. A pack that breaks a rule raises PACK_INVALID, which names the pack's folder,
the rule and what was found.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import msgspec

from contracts.errors import MeshError
from contracts.pack import Manifest, PackFile, PackTensor
from shared.pack_digests import pack_digest, sha256
from shared.pack_rules import MANIFEST, VIEW, manifest_fault

__all__ = [
    "MANIFEST",
    "VIEW",
    "Identity",
    "identify",
    "pack_digest",
    "pack_path",
    "read_folder",
    "read_manifest",
    "read_view",
    "verify",
]

manifest_bytes_max = 8 * 1024 * 1024
view_bytes_max = 1024 * 1024
_chunk_bytes = 1024 * 1024
_DATATYPES = {
    "BOOL": "BOOL", "I8": "INT8", "I16": "INT16", "I32": "INT32", "I64": "INT64",
    "U8": "UINT8", "U16": "UINT16", "U32": "UINT32", "U64": "UINT64",
    "F16": "FP16", "BF16": "BF16", "F32": "FP32", "F64": "FP64",
}  # fmt: skip
"""safetensors' names and ours. Source: the safetensors format description."""

_decode = msgspec.json.Decoder(Manifest).decode


@dataclass(frozen=True, slots=True)
class Identity:
    """What the kernel says of a file: the same identity, the same content (mtime can be set back
    by its owner, ctime cannot)."""

    device: int
    inode: int
    bytes: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        """The identity in a stat result."""
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )


def pack_path(models_dir: Path, digest: str) -> Path:
    """The folder of a pack."""
    return models_dir / digest.removeprefix("sha256:")


def read_manifest(models_dir: Path, digest: str) -> Manifest:
    """The manifest of a staged pack, which is the one that this digest names. Reads no weights.

    Raises PACK_INVALID when the pack is absent or its manifest is not this digest's.
    """
    return _read(pack_path(models_dir, digest), digest)


def read_folder(path: Path) -> Manifest:
    """The manifest of the pack in this folder, whichever it is. Raises PACK_INVALID."""
    return _read(path, None)


def read_view(models_dir: Path, digest: str) -> str:
    """The SQL text of a pack's view, checked against the digest in the contract."""
    path = pack_path(models_dir, digest)
    view = _read(path, digest).contract.view
    if view is msgspec.UNSET:
        raise _invalid(path, "has no view")
    text = _read_small(path / VIEW, view_bytes_max)
    if sha256(text) != view.digest:
        raise _invalid(path, f"{VIEW} has digest {sha256(text)}, expected {view.digest}")
    return text.decode()


def verify(path: Path, digest: str | None = None) -> Manifest:
    """Read every byte of the pack in this folder and check every digest.

    `digest`: the pack that it must be. Raises PACK_INVALID.
    """
    manifest = _read(path, digest)
    expected = {file.path for file in manifest.files} | {MANIFEST}
    stray = sorted(expected ^ set(os.listdir(path)))
    if stray:
        word = "missing" if stray[0] in expected else "unexpected"
        raise _invalid(path, f"{stray[0][:80]!r} is {word}")
    for file in manifest.files:
        tensors = [tensor for tensor in manifest.tensors if tensor.file == file.path]
        _verify_file(path, file, tensors)
    return manifest


def identify(path: Path, manifest: Manifest) -> Mapping[str, Identity]:
    """The identity of each file of a pack, manifest included."""
    names = [MANIFEST, *(file.path for file in manifest.files)]
    try:
        return {name: Identity.of(os.lstat(path / name)) for name in names}
    except OSError as error:
        raise _invalid(path, f"cannot be read: {error.strerror}") from error


def _read(path: Path, digest: str | None) -> Manifest:
    encoded = _read_small(path / MANIFEST, manifest_bytes_max)
    try:
        manifest = _decode(encoded)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _invalid(path, f"{MANIFEST}: {str(error)[:300]}") from error
    fault = manifest_fault(manifest)
    if fault:
        raise _invalid(path, fault)
    if digest is not None and pack_digest(manifest) != digest:
        raise _invalid(path, f"has digest {pack_digest(manifest)}, expected {digest}")
    return manifest


def _read_small(path: Path, bytes_max: int) -> bytes:
    descriptor = _open(path)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size > bytes_max:
            raise _invalid(path.parent, f"{path.name} is {size} bytes, the limit is {bytes_max}")
        return file.read(bytes_max)


def _open(path: Path) -> int:
    """A regular file opened for reading; a link or a device is refused, not followed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _invalid(path.parent, f"{path.name} cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _invalid(path.parent, f"{path.name} is not a regular file")
    return descriptor


def _verify_file(path: Path, file: PackFile, tensors: list[PackTensor]) -> None:
    with os.fdopen(_open(path / file.path), "rb", buffering=0) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size != file.bytes:
            raise _invalid(path, f"{file.path} is {size} bytes, expected {file.bytes}")
        found = _digest(opened, 0, file.bytes)
        if found != file.digest:
            raise _invalid(path, f"{file.path} has digest {found}, expected {file.digest}")
        for tensor in tensors:
            found = _digest(opened, tensor.offset, tensor.bytes)
            if found != tensor.digest:
                raise _invalid(
                    path, f"tensor {tensor.name!r} has digest {found}, expected {tensor.digest}"
                )
        if file.path.endswith(".safetensors"):
            _compare_header(path, file, opened, tensors)


def _digest(opened: FileIO, offset: int, length: int) -> str:
    """Read, not mapped: a file that shrinks meanwhile gives another digest instead of SIGBUS."""
    digest = hashlib.sha256()
    opened.seek(offset)
    while length > 0 and (chunk := opened.read(min(length, _chunk_bytes))):
        digest.update(chunk)
        length -= len(chunk)
    return "sha256:" + digest.hexdigest()


def _compare_header(path: Path, file: PackFile, opened: FileIO, tensors: list[PackTensor]) -> None:
    """The file's own index and the manifest describe the same tensors: whoever reads the file with
    another tool sees what we serve."""
    opened.seek(0)
    header_bytes = min(int.from_bytes(opened.read(8), "little"), manifest_bytes_max)
    start = 8 + header_bytes
    try:
        header = json.loads(opened.read(header_bytes))
        header.pop("__metadata__", None)
        found = {
            name: (_DATATYPES.get(row["dtype"]), row["shape"], start + row["data_offsets"][0])
            for name, row in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise _invalid(path, f"{file.path} is not a safetensors file") from error
    expected = {tensor.name: (tensor.datatype, tensor.shape, tensor.offset) for tensor in tensors}
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise _invalid(
                path,
                f"tensor {name[:80]!r} is {expected.get(name)} in {MANIFEST} "
                f"and {found.get(name)} in {file.path}",
            )


def _invalid(path: Path, reason: str) -> MeshError:
    return MeshError("PACK_INVALID", f"pack {path.name[:80]}: {reason}")
