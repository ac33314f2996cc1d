"""What `status` tells: one row per child, and the mesh in one word."""

import os
from collections.abc import Sequence
from typing import Literal

import msgspec

from contracts.infrastructure import Resource
from contracts.types import Open
from supervisor.instance import Instance
from supervisor.measuring import ResourceRow
from supervisor.mesh import Mesh
from supervisor.slot import Slot
from supervisor.startup import TEMPLATE, StartupRow, steps_of

MeshState = Literal["ready", "degraded", "live", "starting"]


class StandbyRow(Open, frozen=True, kw_only=True):
    """The second process of a child; `pid` is null before its fork is known."""

    pid: int | None
    state: str


class ChildRow(Open, frozen=True, kw_only=True):
    """One child. `condition`: up, starting, waiting, degraded or stopped; `ready` and `reasons`
    are the service's own words; `last_ending` how its predecessor ended. `pid` is null while none
    runs: `kill 0` would end the reader's own shell. `active_s` counts from when it began to
    accept. `infrastructure` is what it uses of what its contract allows, by resource, `alarms` the
    limits that are (nearly) used up, in words; `cpu_weight` what the priority policy's CPU weight
    came to, or why it was not given."""

    service: str
    index: int
    condition: str
    ready: bool
    degraded: bool
    reasons: list[str]
    policy_version: int
    pid: int | None
    instance: str
    uptime_s: float
    active_s: float
    restarts: int
    last_ending: str
    durations_s: dict[str, float]
    standby: StandbyRow | None
    infrastructure: dict[Resource, ResourceRow] = msgspec.field(default_factory=dict)
    alarms: list[str] = msgspec.field(default_factory=list)
    cpu_weight: str = ""


class MeshStatus(Open, frozen=True, kw_only=True):
    """The mesh of one home. `state`: ready; degraded (a child is given up, or it serves, but a
    child is missing or serves less); live (all run, the edge cannot answer yet); starting (a child
    is not up). `reason` says why it is degraded, "" when it is not. `unmeasured` is
    what of the machine nobody measures here, with the reason. `startup`: how long each step of the
    start of the processes that run now took, beside its budget.
    """

    running: bool
    state: MeshState
    home: str
    run_dir: str
    pid: int
    uptime_s: float
    template_pid: int | None
    children: list[ChildRow]
    unmeasured: dict[str, str] = msgspec.field(default_factory=dict)
    startup: list[StartupRow] = msgspec.field(default_factory=list)
    reason: str = ""


def state_of(
    children: Sequence[ChildRow], *, serves: bool, is_live: bool, template_fault: str = ""
) -> tuple[MeshState, str]:
    """The mesh in one word, and why it is degraded. `serves`: the edge can answer requests;
    `template_fault`: why no process can be forked ("" when it can). Pure."""
    given_up = [child for child in children if child.condition == "degraded"]
    faults = [f"template: {template_fault}"] if template_fault else []
    faults += [f"{child.service}.{child.index}: {'; '.join(child.reasons)}" for child in given_up]
    if not serves:
        if faults:
            return "degraded", f"it cannot answer; {', '.join(faults)}"
        return ("live" if is_live else "starting"), ""
    faults += [
        f"{child.service}.{child.index}: {'; '.join(child.reasons) or child.condition}"
        for child in children
        if child not in given_up and (child.condition != "up" or child.degraded)
    ]
    return ("degraded", ", ".join(faults)) if faults else ("ready", "")


def status_of(mesh: Mesh, home: str, run_dir: str, now_s: float) -> MeshStatus:
    """The status as it stands."""
    children = [_child(mesh, slot, now_s) for slot in mesh.slots]
    template, template_fault = None, ""
    if mesh.template is not None:
        template = mesh.template.instance
        if mesh.template.restarts.is_degraded:
            template_fault = f"failed too often, last: {mesh.template.last_ending}"
    state, reason = state_of(
        children, serves=mesh.is_ready, is_live=mesh.is_live, template_fault=template_fault
    )
    return MeshStatus(
        running=True,
        state=state,
        home=home,
        run_dir=run_dir,
        pid=os.getpid(),
        uptime_s=now_s - mesh.started_s,
        template_pid=template.pid or None if template is not None else None,
        children=children,
        unmeasured=mesh.measuring.unmeasured,
        startup=_startup(mesh),
        reason=reason,
    )


def _startup(mesh: Mesh) -> list[StartupRow]:
    """The template first; a place that nobody fills has no row."""
    found = [] if mesh.template is None else [(TEMPLATE, mesh.template.instance)]
    found += [(slot.spec.label, slot.active) for slot in mesh.slots]
    return [
        StartupRow(
            process=process,
            pid=instance.pid or None,
            seconds=round(
                instance.ready_s - instance.started_s + instance.durations_s.get("answer", 0.0), 4
            ),
            steps=steps_of(process, instance.durations_s),
        )
        for process, instance in found
        if instance is not None and instance.state == "ready"
    ]


def _child(mesh: Mesh, slot: Slot, now_s: float) -> ChildRow:
    active, health = slot.active, mesh.health(slot)
    standby = slot.standby
    return ChildRow(
        service=slot.spec.service,
        index=slot.spec.index,
        condition=slot.condition,
        ready=health is not None and health.ready,
        degraded=slot.condition == "degraded" or (health is not None and health.degraded),
        reasons=_reasons(slot, active, None if health is None else health.reasons),
        policy_version=0 if health is None else health.policy_version,
        pid=None if active is None else active.pid or None,
        instance="" if active is None else active.identity,
        uptime_s=0.0 if active is None else now_s - active.started_s,
        active_s=0.0 if active is None or not active.accepting else now_s - active.accepting_s,
        restarts=slot.restarts.count,
        last_ending=slot.last_ending,
        durations_s={} if active is None else active.durations_s,
        standby=None if standby is None else _standby(standby),
        infrastructure=mesh.measuring.rows(slot),
        alarms=mesh.measuring.texts(slot),
        cpu_weight=mesh.priorities.words(slot),
    )


def _standby(standby: Instance) -> StandbyRow:
    return StandbyRow(pid=standby.pid or None, state=standby.state)


def _reasons(slot: Slot, active: Instance | None, said: list[str] | None) -> list[str]:
    reasons = list(said or [])
    if slot.restarts.is_degraded:
        why = "" if slot.has_refused else "failed too often, last: "
        reasons.append(why + slot.last_ending)
    if slot.standby_restarts.is_degraded:
        reasons.append("its standby fails too often")
    if active is not None and said is None and active.state == "ready":
        reasons.append("no answer to the last probe")
    return reasons
