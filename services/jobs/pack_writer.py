"""Writes a pack from arrays and its contract, and stages it under its digest.

The same arrays, contract and provenance give the same bytes, hence the same digest.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.numpy

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
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Draft:
    """Everything a pack is made of. `tensors` may be empty (a model without weights); `view_sql`
    is there exactly when the contract names a view."""

    contract: ModelContract
    architecture: Architecture
    provenance: Provenance
    tensors: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    encoders: tuple[ColumnEncoder, ...] = ()
    view_sql: str | None = None


def write_pack(draft: Draft, models_dir: Path) -> str:
    """Write the pack into `models_dir`; returns its digest. Raises PACK_INVALID when the draft
    breaks a rule of packs."""
    with tempfile.TemporaryDirectory(prefix="pack") as folder:
        _write(draft, Path(folder))
        digest, _ = stage(Path(folder), models_dir)
    return digest


def _write(draft: Draft, folder: Path) -> None:
    contents: dict[str, bytes] = {}
    if draft.tensors:
        arrays = {name: np.ascontiguousarray(array) for name, array in draft.tensors.items()}
        contents[WEIGHTS] = safetensors.numpy.save(arrays)
    if draft.view_sql is not None:
        contents[VIEW] = draft.view_sql.encode()
    tensors = _index(contents[WEIGHTS]) if draft.tensors else []
    manifest = Manifest(
        format=1,
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


def _index(encoded: bytes) -> list[PackTensor]:
    """Where each tensor lies, read back from the file's own header (safetensors format)."""
    start = 8 + int.from_bytes(encoded[:8], "little")
    header: dict[str, Any] = msgspec.json.decode(encoded[8:start])
    arrays = safetensors.numpy.load(encoded)
    rows = []
    for name, row in sorted(header.items()):
        begin, end = row["data_offsets"]
        datatype = _DATATYPES[arrays[name].dtype.name]
        assert end - begin == arrays[name].size * DATATYPE_BYTES[datatype]
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
