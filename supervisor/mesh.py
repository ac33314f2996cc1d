"""All children of one home together: started at once, watched, replaced, drained in order."""

import asyncio
from collections.abc import Callable

from contracts.service import Health, Metrics
from shared import logs
from shared.clock import Clock
from shared.home import Home, socket_path
from supervisor.cpu_scheduling import Cgroups
from supervisor.draining import drain
from supervisor.in_force import InForce
from supervisor.instance import Instance
from supervisor.jemalloc import is_loaded
from supervisor.launcher import Launcher, Surroundings
from supervisor.measuring import Measuring
from supervisor.priorities import Priorities
from supervisor.probe import Probe
from supervisor.reaper import Reaper
from supervisor.replacement import replace
from supervisor.sla import Sla
from supervisor.slot import Slot
from supervisor.sockets import Listeners
from supervisor.spec import ChildSpec, MeshSpec
from supervisor.template import Template
from supervisor.watch import Watch

log = logs.get("supervisor.mesh")
EDGE = "orchestrator"
"""Clients connect here; its health is the mesh's."""
_template_s_max = 30.0


class Mesh:
    """The children of one home. Made inside the loop; every method runs on it.

    `on_answer(slot, instance, health)` is called whenever an active instance answers a probe with
    its health, `on_template` when a template can fork. `changed` is set at every event worth a
    look.
    """

    def __init__(
        self,
        spec: MeshSpec,
        surroundings: Surroundings,
        listeners: Listeners,
        clock: Clock,
        trace_id: str,
    ) -> None:
        self.spec = spec
        self.started_s = clock.monotonic()
        self.changed = asyncio.Event()
        self.on_answer: Callable[[Slot, Instance, Health], None] = lambda *_: None
        self.on_template: Callable[[Instance], None] = lambda instance: None
        self._clock, self._listeners = clock, listeners
        self._reaper = Reaper()
        self._launcher = Launcher(surroundings, listeners, self._reaper, clock)
        self.slots = [self._make_slot(child, trace_id) for child in spec.children]
        self.template = self._make_template(trace_id)
        self.probes = {slot.spec.label: self._make_probe(slot) for slot in self.slots}
        self._watch = Watch(
            spec.patience, self.slots, self.template, self._launcher, self._reaper, clock
        )
        home = Home(surroundings.home)
        in_force = InForce(home.policy_dir, surroundings.config.runtime)
        self.priorities = Priorities(self.slots, in_force, Cgroups.find(), self.replace)
        self.measuring = Measuring(
            self.slots, in_force, clock, self._edge_version, self.priorities.look
        )
        self.sla = Sla(self._edge_metrics, in_force, home.sla_path, home.models_dir, clock)

    def start(self) -> None:
        """Start every child; standbys follow once all are up."""
        if self.template is not None:
            self.template.start()
        for slot in self.slots:
            slot.fill()
        self._watch.start()
        self.measuring.start()
        self.sla.start()

    def slot(self, service: str, index: int = 0) -> Slot | None:
        """The place of one service, or None."""
        for slot in self.slots:
            if (slot.spec.service, slot.spec.index) == (service, index):
                return slot
        return None

    def health(self, slot: Slot) -> Health | None:
        """What the active instance last said of itself; None when it has not, or not lately."""
        health = self.probes[slot.spec.label].health
        is_current = (
            health is not None
            and slot.active is not None
            and health.instance == slot.active.identity
        )
        return health if is_current else None

    @property
    def is_live(self) -> bool:
        """Every child is up and has answered."""
        return all(slot.condition == "up" and self.health(slot) for slot in self.slots)

    @property
    def is_ready(self) -> bool:
        """The edge can answer requests, by its own word."""
        edge = self.slot(EDGE)
        health = None if edge is None else self.health(edge)
        return health is not None and health.ready

    async def replace(self, slot: Slot, trace_id: str) -> str | None:
        """Planned replacement of one child; None, or why it did not succeed."""
        slot.trace_id = trace_id
        if slot.spec.service == EDGE:
            await self.sla.look()  # its counts go with it
        if slot.spec.is_forked and self.template is not None:
            self.template.trace_id = trace_id
            reason = await self._renew_template(self.template)
            if reason is not None:
                return reason
        return await replace(slot)

    def add(self, child: ChildSpec, trace_id: str) -> Slot:
        """Start one more child, whose socket is bound."""
        slot = self._make_slot(child, trace_id)
        self.probes[child.label] = self._make_probe(slot)
        self.slots.append(slot)
        slot.fill()
        return slot

    async def remove(self, slot: Slot) -> None:
        """Drain a child and forget its place."""
        await slot.drain()
        self.slots.remove(slot)
        await self.probes.pop(slot.spec.label).close()

    async def drain(self) -> None:
        """End everything, in order and within the budget."""
        self._watch.close()
        self.measuring.close()
        self.priorities.close()
        await self.sla.close()
        self._listeners.close(EDGE, 0)
        await drain(self.slots, self.template, self._reaper)
        for probe in self.probes.values():
            await probe.close()
        self._reaper.close()

    def _edge_version(self) -> int | None:
        """The policy version that the edge has in force, by its own word."""
        edge = self.slot(EDGE)
        health = None if edge is None else self.health(edge)
        return None if health is None else health.policy_version

    async def _edge_metrics(self) -> Metrics | None:
        """What the edge counted; None when it does not answer."""
        edge = self.slot(EDGE)
        if edge is None or edge.condition != "up":
            return None
        return await self.probes[edge.spec.label].metrics()

    def _make_template(self, trace_id: str) -> Template | None:
        if self.spec.template is None:
            return None
        return Template(
            self.spec.template,
            launcher=self._launcher,
            reaper=self._reaper,
            intensity=self.spec.intensity,
            clock=self._clock,
            trace_id=trace_id,
            on_ready=self._on_template_ready,
        )

    def _make_slot(self, child: ChildSpec, trace_id: str) -> Slot:
        return Slot(
            child,
            launcher=self._launcher,
            intensity=self.spec.intensity,
            clock=self._clock,
            trace_id=trace_id,
            on_change=self._on_change,
        )

    def _make_probe(self, slot: Slot) -> Probe:
        service, index = slot.spec.service, slot.spec.index
        return Probe(
            socket_path(self._launcher.surroundings.run_dir, service, index),
            service,
            patience=self.spec.patience,
            clock=self._clock,
            on_answer=lambda health: self._on_answer(slot, health),
        )

    def _on_template_ready(self, instance: Instance) -> None:
        for slot in self.slots:
            if slot.spec.is_forked:
                slot.retry()
        self.on_template(instance)
        self.changed.set()

    async def _renew_template(self, template: Template) -> str | None:
        """A template with today's code: the old one ends, its workers live on."""
        before = template.instance
        template.renew()
        ends_s = self._clock.monotonic() + _template_s_max
        while self._clock.monotonic() < ends_s:
            now = template.instance
            if now is not None and now is not before and now.state == "ready":
                return None
            await self.wait_changed(self.spec.patience.tick_s)
        return f"no template within {_template_s_max} s: {template.last_ending}"

    async def wait_changed(self, seconds: float) -> None:
        """Return at the next event, or after so many seconds."""
        self.changed.clear()
        try:
            await asyncio.wait_for(self.changed.wait(), seconds)
        except TimeoutError:
            return

    def _on_change(self, slot: Slot, instance: Instance) -> None:
        if instance.state == "ready":
            self._check_allocator(instance)
        if instance is slot.active and instance.accepting:
            self.probes[slot.spec.label].now()
        self.changed.set()

    def _check_allocator(self, instance: Instance) -> None:
        """The loader only warns when it cannot preload: say it once more, where it is read."""
        library = self._launcher.surroundings.jemalloc
        if library is not None and not is_loaded(instance.pid, library):
            log.warning("jemalloc_not_loaded", child=instance.label, library=library)

    def _on_answer(self, slot: Slot, health: Health | None) -> None:
        active = slot.active
        if active is None or (health is not None and health.instance != active.identity):
            return
        now_s = self._clock.monotonic()
        active.answered_s = now_s
        if health is not None:
            if not active.is_standby:
                active.durations_s.setdefault("answer", now_s - active.ready_s)
            self.on_answer(slot, active, health)
            if self.is_live:
                for other in self.slots:
                    other.allow_standby()
        self.changed.set()
