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


class FakeInstance:
    """A process that says "draining" while it is being asked to leave, as a real one does."""

    def __init__(self, launcher: "FakeLauncher") -> None:
        self.state, self.accepting, self.pid = "ready", True, len(launcher.started) + 1
        self.on_change: Any = None

    def dismiss(self) -> None:
        """Drain."""
        self.state = "draining"
        self.on_change(self)

    def kill(self, reason: str) -> None:
        """Later."""


class FakeLauncher:
    """Counts whom it starts; `can_start` says whether it does."""

    def __init__(self) -> None:
        self.started: list[FakeInstance] = []
        self.can_start = True

    def start(self, spec: ChildSpec, *, on_change: Any, **_facts: Any) -> FakeInstance | None:
        """One more, if possible."""
        if not self.can_start:
            return None
        instance = FakeInstance(self)
        instance.on_change = on_change
        self.started.append(instance)
        return instance


async def test_a_successor_takes_the_place_of_the_standby_and_no_third_one_is_left() -> None:
    """Each process that was started is in the place or on its way out: one that is neither would
    live, unseen, for as long as the mesh. When none can be started the standby stays."""
    launcher = FakeLauncher()
    slot = Slot(
        ChildSpec("orchestrator", 0, (), has_standby=True),
        launcher=cast("Any", launcher),
        intensity=Intensity(),
        clock=ManualClock(),
        trace_id="",
        on_change=lambda slot, instance: None,
    )
    slot.fill()
    slot.allow_standby()
    assert len(launcher.started) == 2
    replaced = slot.standby
    for count in (3, 4, 5):
        successor = slot.start_successor()
        assert slot.standby is successor is not replaced
        assert len(launcher.started) == count
        assert {id(one) for one in launcher.started} == {id(one) for one in slot.instances()}
        replaced = successor
    launcher.can_start = False
    assert slot.start_successor() is None
    assert slot.standby is replaced
    assert replaced is not None
    assert replaced.state == "ready"
