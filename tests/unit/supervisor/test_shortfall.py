"""What a mesh lacks, and whether it serves anything all the same."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.service import Health
from supervisor.mesh import Mesh
from supervisor.shortfall import View, is_served, shortfalls

HERE, AWAY = ("departure", "1"), ("departure", "2")


@pytest.mark.parametrize(
    ("needed", "verdict"),
    [
        ([], True),
        ([None], True),
        ([HERE], True),
        ([AWAY], False),
        ([AWAY, AWAY], False),
        ([AWAY, HERE], True),
        ([AWAY, None], True),
    ],
)
def test_one_model_that_can_be_asked_is_enough(needed: list[View | None], verdict: bool) -> None:
    """One without a view, or whose very version is served; a mesh without models lacks none."""
    assert is_served(needed, {HERE}) is verdict


def test_every_child_that_serves_less_says_why() -> None:
    """By its own word; one that does not answer counts, a whole one does not."""

    def health(service: str, reasons: list[str]) -> Health:
        return Health(
            live=True, ready=True, degraded=bool(reasons), reasons=reasons, policy_version=1,
            uptime_s=1.0, service=service, instance="i",
        )  # fmt: skip

    said: dict[str, Any] = {
        "orchestrator 0": health("orchestrator", []),
        "data_fabric 0": health("data_fabric", ["view a 1: no file", "view b 1: no file"]),
        "control_plane 0": None,
    }
    slots = [SimpleNamespace(spec=SimpleNamespace(label=label)) for label in said]
    mesh = cast("Mesh", SimpleNamespace(slots=slots, health=lambda slot: said[slot.spec.label]))
    assert shortfalls(mesh) == [
        "data_fabric 0: view a 1: no file, view b 1: no file",
        "control_plane 0: no answer",
    ]
