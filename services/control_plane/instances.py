"""Every instance that the control plane heard of: what it reported, received, checked, has active.

Pure: the shell passes `now_s`. An instance is known by its name; its slot (`service.index`) is
what a successor takes over.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from contracts.control import InstanceRow
from contracts.distribution import Acknowledge, Position, Report, Subscribe
from contracts.limits import stale_after_s
from contracts.types import UNSET

instances_max = 256
forget_after_s = 60.0
"""An instance that has no connection and was silent for so long leaves the table."""

assert forget_after_s > stale_after_s, "a stale instance is shown before it is forgotten"


@dataclass(slots=True)
class Instance:
    """One process. Times are monotonic seconds; sequences are those of positions, 0 = none."""

    name: str
    service: str
    is_connected: bool = False
    heard_s: float = float("-inf")
    report: Report | None = None
    received: int = 0
    valid: int = 0
    active: Position | None = None

    @property
    def slot(self) -> str:
        """`service.index`: the instance name without the boot id."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def is_active_role(self) -> bool:
        """Whether it serves, as far as it said."""
        return self.report is not None and self.report.role == "active"

    def is_fresh(self, now_s: float) -> bool:
        """Whether its last report is recent enough to require it for a push."""
        return now_s - self.heard_s <= stale_after_s

    def row(self, now_s: float) -> InstanceRow | None:
        """How `status` shows it; None before its first report."""
        report = self.report
        if report is None:
            return None
        return InstanceRow(
            service=self.service,
            instance=self.name,
            role=report.role,
            ready=report.ready,
            received=self.received,
            valid=self.valid,
            active=0 if self.active is None else self.active.sequence,
            stale=not self.is_fresh(now_s),
            report_age_s=round(now_s - self.heard_s, 3),
            infra=report.infra,
            models=[f"{model.name} {model.version} {model.state}" for model in report.models],
        )


@dataclass(slots=True)
class Instances:
    """The table."""

    by_name: dict[str, Instance] = field(default_factory=dict)

    def subscribed(self, subscribe: Subscribe) -> Instance:
        """An instance connected; its position is what it has in force and on disk."""
        instance = self._get(subscribe.instance, subscribe.service)
        instance.is_connected = True
        if subscribe.position is not UNSET:
            instance.active = subscribe.position
        return instance

    def left(self, name: str) -> None:
        """Its subscription ended."""
        if (instance := self.by_name.get(name)) is not None:
            instance.is_connected = False

    def reported(self, report: Report, now_s: float) -> Instance:
        """A heartbeat. An active instance replaces those of its slot that are gone; one that says
        goodbye is in the table no longer."""
        instance = self._get(report.instance, report.service)
        instance.heard_s, instance.report = now_s, report
        if report.leaving:
            del self.by_name[report.instance]
            return instance
        if report.position is not UNSET:
            instance.active = report.position
        if report.role == "active":
            for other in list(self.by_name.values()):
                if other.slot == instance.slot and not other.is_connected and other is not instance:
                    del self.by_name[other.name]
        self._forget(now_s)
        return instance

    def sent(self, name: str, position: Position) -> None:
        """A prepare or activate went to it."""
        if (instance := self.by_name.get(name)) is not None:
            instance.received = position.sequence

    def acknowledged(self, acknowledge: Acknowledge) -> None:
        """It checked a set, or has it in force."""
        if (instance := self.by_name.get(acknowledge.instance)) is None:
            return
        if acknowledge.state == "valid":
            instance.valid = acknowledge.position.sequence
        elif acknowledge.state == "active":
            instance.valid = acknowledge.position.sequence
            instance.active = acknowledge.position

    def required(self, now_s: float) -> set[str]:
        """Whom a push needs: active instances with a recent heartbeat."""
        return {
            instance.name
            for instance in self.by_name.values()
            if instance.is_active_role and instance.is_fresh(now_s)
        }

    def serving(self, service: str, now_s: float) -> Iterator[Report]:
        """The last reports of a service's active, fresh instances."""
        for instance in self.by_name.values():
            if (
                instance.service == service
                and instance.report is not None
                and instance.is_active_role
                and instance.is_fresh(now_s)
            ):
                yield instance.report

    def rows(self, now_s: float) -> list[InstanceRow]:
        """Everybody who ever reported, by service and name."""
        rows = [row for one in self.by_name.values() if (row := one.row(now_s)) is not None]
        return sorted(rows, key=lambda row: (row.service, row.instance))

    def _get(self, name: str, service: str) -> Instance:
        instance = self.by_name.get(name)
        if instance is None:
            if len(self.by_name) >= instances_max:
                oldest = min(self.by_name.values(), key=lambda one: (one.is_connected, one.heard_s))
                del self.by_name[oldest.name]
            instance = self.by_name[name] = Instance(name, service)
        return instance

    def _forget(self, now_s: float) -> None:
        for instance in list(self.by_name.values()):
            if not instance.is_connected and now_s - instance.heard_s > forget_after_s:
                del self.by_name[instance.name]
