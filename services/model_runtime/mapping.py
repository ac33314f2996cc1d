"""A verified pack's tensors as read-only memory maps, shared between processes through the page
cache. Nothing is copied; nothing is unpickled.

Every map is made from the descriptor whose identity was verified, so what is mapped is what was
hashed. A file cut short by its owner afterwards ends the process with SIGBUS; the supervisor
replaces it and the load is refused.
"""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from contracts.errors import MeshError
from contracts.pack import Manifest
from services.model_runtime.config import side_file_bytes_max
from shared.packs import VIEW, Identity

Array = np.ndarray[Any, np.dtype[Any]]
NUMPY_TYPES: dict[str, str] = {
    "BOOL": "|b1", "INT8": "|i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8",
    "UINT8": "|u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "FP16": "<f2", "BF16": "<u2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
"""Packs and the wire are little-endian. numpy has no bfloat16: its bits are carried as UINT16."""


def map_tensors(
    path: Path, manifest: Manifest, identities: Mapping[str, Identity]
) -> dict[str, Array]:
    """Each tensor's array by name, in this machine's byte order: a view into the map where that
    is little-endian, else a swapped copy. Raises PACK_INVALID when a file is no longer the one
    that was verified."""
    maps = {
        name: _map(path / name, identities[name])
        for name in sorted({tensor.file for tensor in manifest.tensors})
    }
    return {
        tensor.name: native(
            np.frombuffer(
                maps[tensor.file],
                dtype=NUMPY_TYPES[tensor.datatype],
                count=tensor.bytes // np.dtype(NUMPY_TYPES[tensor.datatype]).itemsize,
                offset=tensor.offset,
            ).reshape(tensor.shape)
        )
        for tensor in manifest.tensors
    }


def read_files(
    path: Path, manifest: Manifest, identities: Mapping[str, Identity]
) -> dict[str, bytes]:
    """The content of each file of the pack that holds no tensor, the view apart, by name: small
    ones that a backend reads itself. Raises PACK_INVALID for one that is no longer the one that was
    verified, or larger than `side_file_bytes_max`."""
    weights = {tensor.file for tensor in manifest.tensors}
    return {
        file.path: _read(path / file.path, identities[file.path])
        for file in manifest.files
        if file.path not in weights and file.path != VIEW
    }


def native(array: Array) -> Array:
    """The same numbers in this machine's byte order; the array itself where it already is."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _read(path: Path, identity: Identity) -> bytes:
    if identity.bytes > side_file_bytes_max:
        raise MeshError(
            "PACK_INVALID",
            f"{path.name} is {identity.bytes} bytes and holds no tensor, side_file_bytes_max is"
            f" {side_file_bytes_max}",
        )
    with os.fdopen(_open(path, identity), "rb") as file:
        return file.read(identity.bytes)


def _open(path: Path, identity: Identity) -> int:
    """A descriptor of the very file that was verified."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if Identity.of(os.fstat(descriptor)) != identity:
        os.close(descriptor)
        raise MeshError("PACK_INVALID", f"{path.name} changed after it was verified")
    return descriptor


def _map(path: Path, identity: Identity) -> mmap.mmap:
    descriptor = _open(path, identity)
    try:
        # POPULATE enters the cached pages at once: a fault for every 64 KiB took twice as long.
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return mmap.mmap(descriptor, 0, flags=flags, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
