"""The memory budget: what a pack will take, and exactly who has to go."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import MeshError
from contracts.pack import Manifest
from services.model_runtime.budget import choose_evictions, needed_bytes
from tests.unit.services.model_runtime.conftest import manifest

MIB = 1024 * 1024


@dataclass
class Loaded:
    """A version of so many bytes."""

    needed_bytes: int


def test_a_pack_takes_its_weights_and_its_buffers_with_head_room() -> None:
    """Two columns of FP32 in and out, 1,024 rows each, and a fifth more."""
    pack: Manifest = manifest()
    assert needed_bytes(pack) == int(1.2 * 1_024 * (2 * 4 + 2 * 4))


@given(st.integers(0, 100), st.integers(0, 100), st.lists(st.integers(0, 40), max_size=12))
def test_exactly_what_is_needed_goes(needed: int, free: int, sizes: list[int]) -> None:
    """Enough, and nobody without whom it would still be enough; else a refusal."""
    idle = [Loaded(size) for size in sizes]
    if free + sum(sizes) < needed:
        with pytest.raises(MeshError) as caught:
            choose_evictions(needed, free, idle)
        assert caught.value.name == "MEMORY_EXHAUSTED"
        return
    chosen = choose_evictions(needed, free, idle)
    room = free + sum(held.needed_bytes for held in chosen)
    assert room >= needed
    assert all(room - held.needed_bytes < needed for held in chosen)


def test_a_refusal_names_what_is_needed_what_is_free_and_the_remedy() -> None:
    """And what is left without the idle versions."""
    with pytest.raises(MeshError) as caught:
        choose_evictions(10 * MIB, 2 * MIB, [Loaded(3 * MIB)])
    message = caught.value.message
    assert message.startswith("10.0 MiB are needed, 2.0 MiB are free and 3.0 MiB more without")
    assert message.endswith("deploy fewer versions here, or raise memory_mib_max")
