"""Writes a pack from arrays and its contract, and stages it under its digest.

The same arrays, contract and provenance give the same bytes, hence the same digest.
"""

import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors

from contracts.inference import DATATYPE_BYTES, Datatype
from contracts.pack import (
    Architecture,
    ColumnEncoder,
    Manifest,
    ModelContract,
    PackFile,
    PackTensor,
    Provenance,
)
from shared.pack_digests import canonical, sha256, weights_digest
from shared.pack_staging import stage
from shared.packs import MANIFEST, VIEW

WEIGHTS = "weights.safetensors"
_DATATYPES: dict[str, Datatype] = {
    "BOOL": "BOOL", "I8": "INT8", "I16": "INT16", "I32": "INT32", "I64": "INT64",
    "U8": "UINT8", "U16": "UINT16", "U32": "UINT32", "U64": "UINT64",
    "F16": "FP16", "BF16": "BF16", "F32": "FP32", "F64": "FP64",
}  # fmt: skip
"""By safetensors' names."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything a pack is made of. `tensors` may be empty (a model without weights); those named
    in `bfloat16` hold its bits as UINT16. `view_sql` is there exactly when the contract names a
    view; `files` are what the backend needs besides."""

    contract: ModelContract
    architecture: Architecture
    provenance: Provenance
    tensors: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    encoders: tuple[ColumnEncoder, ...] = ()
    view_sql: str | None = None
    backend: str = "torch"
    bfloat16: frozenset[str] = frozenset()
    files: Mapping[str, bytes] = field(default_factory=dict)


def write_pack(draft: Draft, models_dir: Path) -> str:
    """Write the pack into `models_dir`; returns its digest. Raises PACK_INVALID when the draft
    breaks a rule of packs."""
    with tempfile.TemporaryDirectory(prefix="pack") as folder:
        write_folder(draft, Path(folder))
        digest, _ = stage(Path(folder), models_dir)
    return digest


def write_folder(draft: Draft, folder: Path) -> None:
    """Write the pack's files into an empty folder."""
    contents: dict[str, bytes] = dict(draft.files)
    if draft.tensors:
        contents[WEIGHTS] = _encode(draft)
    if draft.view_sql is not None:
        contents[VIEW] = draft.view_sql.encode()
    tensors = _index(contents[WEIGHTS]) if draft.tensors else []
    manifest = Manifest(
        format=1,
        backend=draft.backend,
        contract=draft.contract,
        architecture=draft.architecture,
        encoders=list(draft.encoders),
        files=[
            PackFile(path=path, bytes=len(content), digest=sha256(content))
            for path, content in sorted(contents.items())
        ],
        tensors=tensors,
        weights=weights_digest(tensors),
        provenance=draft.provenance,
    )
    contents[MANIFEST] = msgspec.json.format(canonical(manifest), indent=1) + b"\n"
    for path, content in contents.items():
        (folder / path).write_bytes(content)


def _encode(draft: Draft) -> bytes:
    """The tensors as a safetensors file."""
    arrays = {
        name: np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        for name, array in draft.tensors.items()
    }
    encoded: bytes = safetensors.serialize(
        {
            name: safetensors.TensorSpec(
                dtype="bfloat16" if name in draft.bfloat16 else array.dtype.name,
                shape=draft.tensors[name].shape,
                data_ptr=array.ctypes.data,
                data_len=array.nbytes,
            )
            for name, array in arrays.items()
        }
    )
    return encoded


def _index(encoded: bytes) -> list[PackTensor]:
    """Where each tensor lies, read back from the file's own header (safetensors format)."""
    start = 8 + int.from_bytes(encoded[:8], "little")
    header: dict[str, Any] = msgspec.json.decode(encoded[8:start])
    rows = []
    for name, row in sorted(header.items()):
        begin, end = row["data_offsets"]
        datatype = _DATATYPES[row["dtype"]]
        assert end - begin == math.prod(row["shape"]) * DATATYPE_BYTES[datatype]
        rows.append(
            PackTensor(
                name=name,
                datatype=datatype,
                shape=row["shape"],
                file=WEIGHTS,
                offset=start + begin,
                bytes=end - begin,
                digest=sha256(encoded[start + begin : start + end]),
            )
        )
    return rows
