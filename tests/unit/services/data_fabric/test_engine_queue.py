"""What the engine refuses reaches the request as an error that names where and why."""

from typing import Any, cast

import pytest

from contracts.errors import MeshError
from services.data_fabric.engine import EngineFailed
from services.data_fabric.engine_path import EnginePath
from services.data_fabric.engine_queue import EngineQueue


class Refusing:
    """An engine that refuses everything for one kind of reason."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def compute(self, rows: list[Any]) -> list[tuple[Any, ...]]:
        """Refuse."""
        raise EngineFailed("departure", self._kind)

    def close(self) -> None:
        """Nothing to give back."""


@pytest.mark.parametrize(
    ("kind", "name", "details"),
    [
        ("time", "DEADLINE_EXCEEDED", {"stage": "features", "hop": "data_fabric"}),
        ("memory", "MEMORY_EXHAUSTED", None),
        ("", "FEATURE_INVALID", None),
    ],
)
async def test_a_refusal_keeps_its_kind_and_time_its_hop(
    kind: str, name: str, details: dict[str, str] | None
) -> None:
    """Who asked learns that time ran out in the fabric's features, not merely that it did."""
    queue = EngineQueue(cast(EnginePath, Refusing(kind)))
    with pytest.raises(MeshError, match="the engine refused: departure") as refused:
        await queue.compute([object()])
    assert (refused.value.name, refused.value.details) == (name, details)
    queue.close()
