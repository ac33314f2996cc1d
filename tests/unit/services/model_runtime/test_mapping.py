"""Mapping: the verified bytes themselves, read-only, in this machine's byte order."""

import os
from pathlib import Path

import numpy as np
import pytest

from contracts.errors import MeshError
from services.jobs.bench_packs import tiny
from services.jobs.pack_writer import write_pack
from services.model_runtime.mapping import map_tensors, native
from shared.packs import identify, pack_path, read_manifest


def test_arrays_are_the_packs_tensors_and_cannot_be_written(tmp_path: Path) -> None:
    """Equal to what was packed; the memory is the file's."""
    digest = write_pack(tiny(), tmp_path)
    path, manifest = pack_path(tmp_path, digest), read_manifest(tmp_path, digest)
    arrays = map_tensors(path, manifest, identify(path, manifest))
    assert arrays.keys() == tiny().tensors.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, tiny().tensors[name])
        assert not array.flags.writeable
        assert not array.flags.owndata


def test_a_file_replaced_after_verification_is_refused(tmp_path: Path) -> None:
    """What is mapped is what was hashed: the same bytes in another file are not taken."""
    digest = write_pack(tiny(), tmp_path)
    path, manifest = pack_path(tmp_path, digest), read_manifest(tmp_path, digest)
    identities = identify(path, manifest)
    weights = path / "weights.safetensors"
    (path / "copy").write_bytes(weights.read_bytes())
    os.replace(path / "copy", weights)
    with pytest.raises(MeshError, match=r"PACK_INVALID: weights.safetensors changed"):
        map_tensors(path, manifest, identities)


def test_foreign_byte_order_is_swapped_not_misread() -> None:
    """Whatever the machine, the numbers are the pack's; the native order is not copied."""
    big, little = np.array([1, 256], ">u4"), np.array([1, 256], "<u4")
    assert native(big).tolist() == native(little).tolist() == [1, 256]
    assert native(big).dtype.isnative
    own = np.array([1, 256], "=u4")
    assert native(own) is own
