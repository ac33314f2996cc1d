"""When a place forgets what its processes did."""

from types import SimpleNamespace
from typing import Any, cast

from shared.clock import ManualClock
from supervisor.restart import Intensity
from supervisor.slot import Slot
from supervisor.spec import ChildSpec


def degraded_slot(active: Any) -> Slot:
    """A place whose processes ended too often, with this one active since."""
    slot = Slot(
        ChildSpec("model_runtime", 0, ()),
        launcher=cast("Any", None),
        intensity=Intensity(restarts_max=1, stable_s=5.0),
        clock=ManualClock(),
        trace_id="",
        on_change=lambda slot, instance: None,
    )
    for _ in range(2):
        slot.restarts.exited(0.0, 0.5)
    slot.active = active
    return slot


def test_a_promoted_standby_is_judged_from_its_promotion() -> None:
    """It stood ready for long while the others died of serving: that makes it no stable child."""
    active = SimpleNamespace(state="ready", ready_s=0.0, accepting_s=100.0, pid=1)
    slot = degraded_slot(active)
    slot.tick(104.9)
    assert slot.restarts.is_degraded
    slot.tick(105.0)
    assert not slot.restarts.is_degraded
