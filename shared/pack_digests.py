"""The digests of a pack: canonical bytes, Merkle roots. Pure; reads no file.

A field that holds its default is left out of the canonical form, so a field that a later contract
adds does not move the digest of a pack that was made before it.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from contracts.pack import Manifest, PackTensor

_LEAF, _NODE = b"\x00", b"\x01"
"""Different first bytes: an inner node can never be presented as a leaf. Source: RFC 6962 §2.1."""


def sha256(content: bytes | memoryview) -> str:
    """The digest of some bytes as contracts write it: `sha256:` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def canonical(value: Any) -> bytes:
    """Canonical JSON of structs, lists, maps and scalars: sorted keys, no spaces, no defaults."""
    return msgspec.json.encode(_plain(value), order="sorted")


def merkle_root(leaves: Iterable[bytes]) -> str:
    """The root over leaves in order; the last of an odd row moves up unchanged. Of no leaf
    it is the digest of nothing."""
    row = [hashlib.sha256(_LEAF + leaf).digest() for leaf in leaves]
    if not row:
        return sha256(b"")
    while len(row) > 1:
        pairs = [
            hashlib.sha256(_NODE + row[i] + row[i + 1]).digest() for i in range(0, len(row) - 1, 2)
        ]
        row = pairs + row[len(pairs) * 2 :]
    return "sha256:" + row[0].hex()


def weights_digest(tensors: Iterable[PackTensor]) -> str:
    """The root over name, datatype, shape and content of each tensor, by name: the same weights
    have the same digest wherever they lie in a file."""
    ordered = sorted(tensors, key=lambda tensor: tensor.name)
    return merkle_root(
        canonical([tensor.name, tensor.datatype, tensor.shape, tensor.digest]) for tensor in ordered
    )


def pack_digest(manifest: Manifest) -> str:
    """The pack's digest: the root over every field of the manifest, each file and each tensor a
    leaf of its own."""
    whole = _plain(manifest)
    files = sorted(whole.pop("files"), key=lambda file: str(file["path"]))
    tensors = sorted(whole.pop("tensors"), key=lambda tensor: str(tensor["name"]))
    fields = sorted(whole.items())
    leaves = [["field", *pair] for pair in fields]
    leaves += [["file", file] for file in files] + [["tensor", tensor] for tensor in tensors]
    return merkle_root(msgspec.json.encode(leaf, order="sorted") for leaf in leaves)


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {
            field.encode_name: _plain(content)
            for field in _fields(type(value))
            if not _is_default(field, content := getattr(value, field.name))
        }
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


@lru_cache(maxsize=64)
def _fields(type_: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Kept, because a pack has hundreds of tensors and resolving their type's fields is slow."""
    return msgspec.structs.fields(type_)


def _is_default(field: msgspec.structs.FieldInfo, content: Any) -> bool:
    if field.default_factory is not msgspec.NODEFAULT:
        return bool(content == field.default_factory())
    return content is field.default or bool(content == field.default)
