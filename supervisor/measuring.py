"""Measures every process once a second against its contract: alarms are logged, shown and counted;
short memory is told to who can do something about it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from contracts.infrastructure import RESOURCES, UNITS, Resource, Terms
from contracts.policies import ServiceName
from contracts.service import Metric, Series
from contracts.types import Open
from shared import logs
from shared.channel import Pressure
from shared.clock import Clock
from supervisor import proc
from supervisor.alarms import Alarms, Change, text_of
from supervisor.in_force import InForce
from supervisor.instance import Instance
from supervisor.perf import CACHE_MISSES, Counters
from supervisor.slot import Slot

log = logs.get("supervisor.measuring")
measure_s = 1.0
GPU_REASON = "no backend of this mesh computes on a GPU"
EDGE, RUNTIME = "orchestrator", "model_runtime"


class ResourceRow(Open, frozen=True, kw_only=True):
    """One resource of a process: `used` is null where it is not known (yet)."""

    used: float | None
    limit: float
    unit: str
    alarm: bool


class Measuring:
    """The tick. Its decisions are in `supervisor/alarms.py`; on the loop's thread only.

    `version` is the policy version that the orchestrator says it has, None while it does not say;
    `then` is called after each look, with the policies of that version in force.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        in_force: InForce,
        clock: Clock,
        version: Callable[[], int | None],
        then: Callable[[], None] = lambda: None,
    ) -> None:
        self._slots, self._in_force, self._clock = slots, in_force, clock
        self._version, self._then = version, then
        self._cache_misses = Counters(CACHE_MISSES)
        self._misses: dict[str, int] = {}
        self._alarms: dict[str, Alarms] = {}
        self._raised: Counter[tuple[str, int, Resource]] = Counter()
        self._pressed: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure now and from now on."""
        self._timer = asyncio.get_running_loop().call_later(measure_s, self.start)
        self.measure()

    def close(self) -> None:
        """Measure nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def measure(self) -> None:
        """Look at everybody once, and tell whom it concerns."""
        version = self._version()
        if version is not None:
            self._in_force.look(version)
        now_s, seen = self._clock.monotonic(), set()
        for slot in self._slots:
            for instance in (slot.active, slot.standby):
                if instance is None or instance.state != "ready":
                    continue
                seen.add(instance.identity)
                found = proc.sample(instance.pid, now_s)
                if found is not None:
                    self._take(slot, instance, found)
                misses = self._cache_misses.total(instance.identity, instance.pid)
                if misses is not None:
                    self._misses[instance.identity] = misses
        for identity in self._alarms.keys() - seen:
            del self._alarms[identity]
        self._misses = {name: count for name, count in self._misses.items() if name in seen}
        self._cache_misses.keep(seen)
        self._pressed &= seen
        self._tell()
        self._then()

    @property
    def unmeasured(self) -> dict[str, str]:
        """What nobody measures here, and why."""
        found = {"gpu_memory": GPU_REASON}
        if self._cache_misses.reason:
            found["cache_misses"] = self._cache_misses.reason
        return found

    def rows(self, slot: Slot) -> dict[Resource, ResourceRow]:
        """The active process of a place by resource; empty while it was not measured."""
        alarms = None if slot.active is None else self._alarms.get(slot.active.identity)
        if alarms is None:
            return {}
        limits = self._terms(slot).limits
        return {
            resource: ResourceRow(
                used=_rounded(alarms.usage[resource]),
                limit=limits[resource],
                unit=UNITS[resource],
                alarm=resource in alarms.raised,
            )
            for resource in RESOURCES
        }

    def texts(self, slot: Slot) -> list[str]:
        """The alarms of a place in words: limit, received, remedy."""
        alarms = None if slot.active is None else self._alarms.get(slot.active.identity)
        return [] if alarms is None else alarms.texts()

    def metrics(self, slot: Slot) -> list[Metric]:
        """Of one place: used, limit and alarm by resource."""
        rows = self.rows(slot)
        place = (slot.spec.service, slot.spec.index)
        used = {name: row.used for name, row in rows.items() if row.used is not None}
        limits = {name: row.limit for name, row in rows.items()}
        alarms = {name: float(row.alarm) for name, row in rows.items()}
        counts = {name: float(self._raised[(*place, name)]) for name in RESOURCES}
        return [
            _family("ai_infrastructure_used", "gauge", "Used of a resource.", used),
            _family("ai_infrastructure_limit", "gauge", "Its limit by the contract.", limits),
            _family("ai_infrastructure_alarm", "gauge", "1 while it is alarmed.", alarms),
            _family("ai_infrastructure_alarms_total", "counter", "Alarms that began.", counts),
            *self._missed(slot),
        ]

    def _missed(self, slot: Slot) -> list[Metric]:
        """Nothing at all where the kernel does not count: a zero would be taken for one."""
        if slot.active is None or slot.active.identity not in self._misses:
            return []
        return [
            Metric(
                name="ai_infrastructure_cache_misses_total",
                kind="counter",
                help="Cache misses in user mode of this instance.",
                labels=[],
                series=[Series(labels=[], value=float(self._misses[slot.active.identity]))],
            )
        ]

    def _terms(self, slot: Slot) -> Terms:
        return self._in_force.terms(cast(ServiceName, slot.spec.service))

    def _take(self, slot: Slot, instance: Instance, found: proc.Sample) -> None:
        alarms = self._alarms.setdefault(instance.identity, Alarms())
        for change in alarms.take(found, self._terms(slot)):
            if change.is_raised:
                self._raised[slot.spec.service, slot.spec.index, change.resource] += 1
            self._log(slot, instance, change)

    def _log(self, slot: Slot, instance: Instance, change: Change) -> None:
        write = log.warning if change.is_raised else log.info
        write(
            "infrastructure_alarm" if change.is_raised else "infrastructure_alarm_over",
            child=slot.spec.label,
            child_instance=instance.identity,
            pid=instance.pid,
            resource=change.resource,
            limit=f"{change.limit_name} {change.limit:g}",
            received=round(change.used, 3),
            remedy=change.remedy,
        )

    def _tell(self) -> None:
        """Say once a second whose memory is short, for as long as it is, and once that it is not.
        Who is not told again forgets it by itself."""
        short = [slot for slot in self._slots if "memory" in self._raised_of(slot)]
        shedding = [slot for slot in short if self._terms(slot).memory_reaction == "shed"]
        classes = {risk for slot in shedding for risk in self._terms(slot).shed_classes}
        shed = Pressure(
            reason="; ".join(_memory_text(slot, self._raised_of(slot)) for slot in shedding),
            classes=sorted(classes),
        )
        for slot in self._slots:
            if slot.spec.service == EDGE:
                for instance in (slot.active, slot.standby):
                    self._press(instance, shed if shedding else None)
            elif slot.spec.service == RUNTIME:
                unloads = slot in short and self._terms(slot).memory_reaction == "unload"
                text = _memory_text(slot, self._raised_of(slot)) if unloads else ""
                self._press(slot.active, Pressure(reason=text, unload=True) if unloads else None)

    def _press(self, instance: Instance | None, pressure: Pressure | None) -> None:
        if instance is None or instance.state != "ready":
            return
        if pressure is not None:
            self._pressed.add(instance.identity)
            instance.press(pressure)
        elif instance.identity in self._pressed:
            self._pressed.discard(instance.identity)
            instance.press(Pressure())

    def _raised_of(self, slot: Slot) -> dict[Resource, Change]:
        alarms = None if slot.active is None else self._alarms.get(slot.active.identity)
        return {} if alarms is None else alarms.raised


def _memory_text(slot: Slot, raised: dict[Resource, Change]) -> str:
    return f"{slot.spec.label}: {text_of(raised['memory'])}"


def _rounded(used: float | None) -> float | None:
    return None if used is None else round(used, 3)


def _family(name: str, kind: str, text: str, values: Mapping[Resource, float]) -> Metric:
    series = [Series(labels=[resource], value=value) for resource, value in values.items()]
    return Metric(name=name, kind=kind, help=text, labels=["resource"], series=series)  # type: ignore[arg-type]
