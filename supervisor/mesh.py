"""All children of one home together: started at once, watched, replaced, drained in order."""

import asyncio
import time
from collections.abc import Callable, Iterable

from contracts.service import Health
from shared import logs
from shared.clock import Clock
from shared.home import socket_path
from supervisor.instance import Instance
from supervisor.jemalloc import is_loaded
from supervisor.launcher import Launcher, Surroundings
from supervisor.liveness import Suspension, judge
from supervisor.probe import Probe
from supervisor.reaper import Reaper
from supervisor.slot import Slot
from supervisor.sockets import Listeners
from supervisor.spec import MeshSpec, drain_s
from supervisor.template import Template

log = logs.get("supervisor.mesh")
EDGE = "orchestrator"
"""Clients connect here; its health is the mesh's."""
_kill_s_max = 2.0
_strangers_rounds_max = 100
_strangers_pause_s = 0.01
_template_s_max = 30.0


class Mesh:
    """The children of one home. Made inside the loop; every method runs on it.

    `on_answer(slot, instance, health)` is called whenever an active instance answers a probe with
    its health, `on_template` when a template can fork. `changed` is set at every event worth a
    look.
    """

    def __init__(
        self, spec: MeshSpec, surroundings: Surroundings, listeners: Listeners, clock: Clock
    ) -> None:
        self.spec = spec
        self.started_s = clock.monotonic()
        self.changed = asyncio.Event()
        self.on_answer: Callable[[Slot, Instance, Health], None] = lambda *_: None
        self.on_template: Callable[[Instance], None] = lambda instance: None
        self._clock, self._listeners = clock, listeners
        self._reaper = Reaper()
        self._launcher = Launcher(surroundings, listeners, self._reaper, clock)
        self._suspension = Suspension(spec.patience)
        self.slots = [
            Slot(
                child,
                launcher=self._launcher,
                intensity=spec.intensity,
                clock=clock,
                on_change=self._on_change,
            )
            for child in spec.children
        ]
        self.template = self._make_template()
        self.probes = {slot.spec.label: self._make_probe(slot, surroundings) for slot in self.slots}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start every child; standbys follow once all are up."""
        if self.template is not None:
            self.template.start()
        for slot in self.slots:
            slot.fill()
        self._tick()

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

    async def replace(self, slot: Slot) -> str | None:
        """Planned replacement of one child; None, or why it did not succeed."""
        if slot.spec.is_forked and self.template is not None:
            reason = await self._renew_template(self.template)
            if reason is not None:
                return reason
        return await slot.replace()

    async def drain(self) -> None:
        """Close the edge first, the control plane last; kill what is left after `drain_s`."""
        if self._timer is not None:
            self._timer.cancel()
        if self.template is not None:
            self.template.close()
        self._listeners.close(EDGE, 0)
        services = dict.fromkeys(slot.spec.service for slot in reversed(self.slots))
        try:
            async with asyncio.timeout(drain_s):
                for service in services:
                    group = [slot for slot in self.slots if slot.spec.service == service]
                    await asyncio.gather(*(slot.drain() for slot in group))
        except TimeoutError:
            log.warning("drain_cut", drain_s=drain_s)
        await self._kill_all()
        for probe in self.probes.values():
            await probe.close()
        self._reaper.close()

    async def _kill_all(self) -> None:
        everybody = [instance for slot in self.slots for instance in slot.instances()]
        if self.template is not None and self.template.instance is not None:
            everybody.append(self.template.instance)
        for slot in self.slots:
            slot.kill()
        waiting = [asyncio.create_task(instance.gone.wait()) for instance in everybody]
        if waiting:
            await asyncio.wait(waiting, timeout=_kill_s_max)
        # What they leave behind comes to us only when they have ended, children after parents.
        for _ in range(_strangers_rounds_max):
            if not self._reaper.kill_strangers():
                break
            await asyncio.sleep(_strangers_pause_s)

    def _make_template(self) -> Template | None:
        if self.spec.template is None:
            return None
        return Template(
            self.spec.template,
            launcher=self._launcher,
            reaper=self._reaper,
            intensity=self.spec.intensity,
            clock=self._clock,
            on_ready=self._on_template_ready,
        )

    def _make_probe(self, slot: Slot, surroundings: Surroundings) -> Probe:
        service, index = slot.spec.service, slot.spec.index
        return Probe(
            socket_path(surroundings.run_dir, service, index),
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
                active.durations_s.setdefault("probe", now_s - active.ready_s)
            self.on_answer(slot, active, health)
            if self.is_live:
                for other in self.slots:
                    other.allow_standby()
        self.changed.set()

    def _instances(self) -> Iterable[Instance]:
        return (instance for slot in self.slots for instance in slot.instances())

    def _tick(self) -> None:
        """Judge everybody, twice a second."""
        patience = self.spec.patience
        self._timer = asyncio.get_running_loop().call_later(patience.tick_s, self._tick)
        now_s = self._clock.monotonic()
        if self._suspension.tick(now_s, time.clock_gettime(time.CLOCK_BOOTTIME)):
            log.warning("time_lost", grace_s=patience.grace_s)
        for instance in list(self._instances()):
            reason = judge(instance.signs(now_s), now_s, patience, self._suspension.grace_from_s)
            if reason is None:
                continue
            log.error("child_stuck", child=instance.label, pid=instance.pid, reason=reason)
            instance.kill(reason)
            if instance.pid == 0 and self.template is not None:
                self.template.kill("it does not fork")
                self._launcher.abandon(instance, reason)
        if self.template is not None:
            self.template.judge(now_s, patience, self._suspension.grace_from_s)
        for slot in self.slots:
            slot.tick(now_s)
        if (count := self._reaper.kill_strangers()) > 0:
            log.warning("strangers_killed", count=count)
