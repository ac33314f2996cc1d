"""Who is given which CPU weight, and what happens where the kernel says no."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contracts.policies import (
    DeployedVersion,
    DeploymentPolicy,
    DeploymentSpec,
    PolicySet,
    PrioritySpec,
)
from supervisor import cpu_scheduling
from supervisor.cpu_scheduling import Cgroups, NotPermitted
from supervisor.cpu_weights import Treatment
from supervisor.in_force import InForce
from supervisor.priorities import WITHOUT_EFFECT, Priorities
from supervisor.slot import Slot

LOW = PrioritySpec(cpu_weights={"1": 1, "2": 1, "3": 1})


class Rig:
    """One runtime among fakes: a kernel that remembers, or refuses; a replacement that counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[tuple[int, Treatment]] = []
        self.refuses_up = False
        self.replaced = 0
        monkeypatch.setattr(cpu_scheduling, "apply", self.apply)
        monkeypatch.setattr(cpu_scheduling, "current", lambda pid: Treatment(0))
        row = DeployedVersion(version="1")
        deployment = DeploymentPolicy(name="m", spec=DeploymentSpec(versions=[row]))
        self.in_force: Any = SimpleNamespace(
            policies=PolicySet(version=1, policies=[deployment]), priority=LOW
        )
        self.slot: Any = SimpleNamespace(
            spec=SimpleNamespace(service="model_runtime", index=0, label="model_runtime 0"),
            active=self.process(10),
        )
        slots, in_force = cast(list[Slot], [self.slot]), cast(InForce, self.in_force)
        groups = Cgroups(None, "no cgroups here")
        self.priorities = Priorities(slots, in_force, groups, self.replace)

    @staticmethod
    def process(pid: int) -> Any:
        """A ready one."""
        return SimpleNamespace(identity=f"r{pid}", pid=pid, state="ready", accepting=True)

    def apply(self, pid: int, wanted: Treatment) -> None:
        """The kernel's part."""
        if self.refuses_up and not wanted.is_idle:
            raise NotPermitted("nice 0 after SCHED_IDLE needs CAP_SYS_NICE")
        self.given.append((pid, wanted))

    async def replace(self, slot: Any, trace_id: str) -> None:
        """The mesh's part."""
        self.replaced += 1
        slot.active = self.process(10 + self.replaced)

    async def look(self) -> str:
        """One look and what it started; the words of the status."""
        self.priorities.look()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return self.priorities.words(self.slot)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Weight 1 is asked for."""
    return Rig(monkeypatch)


async def test_weights_without_effect_are_said_to_have_none(rig: Rig) -> None:
    """One runtime serves every class: it has the usual weight, and is not touched. Later policies
    are obeyed, and nothing is said where nothing asks."""
    rig.in_force.priority = PrioritySpec(cpu_weights={"1": 100, "2": 50, "3": 50})
    assert await rig.look() == await rig.look() == WITHOUT_EFFECT
    assert rig.given == []
    rig.in_force.priority = PrioritySpec()
    assert await rig.look() == ""
    rig.in_force.priority = PrioritySpec(cpu_weights={"1": 100, "2": 50, "3": 50})
    assert await rig.look() == WITHOUT_EFFECT
    rig.in_force.priority = LOW
    assert "SCHED_IDLE" in await rig.look()


async def test_what_was_given_is_said_with_why_it_is_no_cgroup(rig: Rig) -> None:
    """Where cgroups are missing, their reason stands beside what took their place."""
    assert await rig.look() == "cpu weight 1: SCHED_IDLE (no cgroups here)"
    assert rig.given == [(10, Treatment(0, is_idle=True))]


async def test_nobody_is_touched_that_nobody_weighs(rig: Rig) -> None:
    """The default policy costs nothing and changes nothing."""
    rig.in_force.priority = PrioritySpec()
    assert await rig.look() == ""
    assert rig.given == []


async def test_an_ordinary_level_is_reached_by_a_new_process(rig: Rig) -> None:
    """Where the kernel does not let it up again, the runtime is replaced once, and its successor
    is left alone."""
    await rig.look()
    rig.refuses_up = True
    rig.in_force.priority = PrioritySpec()
    await rig.look()
    assert (rig.replaced, rig.slot.active.pid) == (1, 11)
    assert await rig.look() == ""
    assert rig.replaced == 1


async def test_what_even_a_new_process_cannot_have_is_only_said(rig: Rig) -> None:
    """A weight above the usual needs a privilege from the beginning: no replacement, but a word."""
    rig.refuses_up = True
    rig.in_force.priority = PrioritySpec(cpu_weights={"1": 300, "2": 300, "3": 300})
    assert (await rig.look()).startswith("cpu weight 300 is not given: nice 0 after")
    await rig.look()
    assert rig.replaced == 0


async def test_a_place_is_replaced_once_for_each_policy_version(rig: Rig) -> None:
    """A successor that is refused as well ends it: nothing is replaced for ever."""
    rig.refuses_up = True
    rig.in_force.priority = PrioritySpec(cpu_weights={"1": 50, "2": 50, "3": 50})
    for _ in range(4):
        await rig.look()
    assert rig.replaced == 1
    rig.in_force.policies = PolicySet(version=2, policies=rig.in_force.policies.policies)
    for _ in range(4):
        await rig.look()
    assert rig.replaced == 2
