"""One place for a service process: the active instance, its standby, and who takes over when.

Invariant: at most one instance has been told to accept and not to stop. A standby is promoted only
when its predecessor is reaped, or has said that it no longer accepts.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Literal

from shared import logs
from shared.clock import Clock
from shared.rpc.call import new_trace_id
from supervisor.instance import Instance, wait_for
from supervisor.launcher import Launcher
from supervisor.restart import Intensity, Restarts
from supervisor.spec import ChildSpec

log = logs.get("supervisor.slot")
standby_delay_s = 0.3
"""A new standby starts this long after a take-over: its import would slow the first requests."""
_retry_s = 1.0

Condition = Literal["up", "starting", "waiting", "degraded", "stopped"]


class Slot:
    """Keeps one child of the mesh alive. Every method runs on the loop.

    `on_change` is told of each change of any of its instances. `trace_id` names the operation that
    goes on here: the start, what follows an exit, or a replacement.
    """

    def __init__(
        self,
        spec: ChildSpec,
        *,
        launcher: Launcher,
        intensity: Intensity,
        clock: Clock,
        trace_id: str,
        on_change: "Callable[[Slot, Instance], None]",
    ) -> None:
        self.spec = spec
        self.active: Instance | None = None
        self.standby: Instance | None = None
        self.restarts = Restarts(intensity)
        self.standby_restarts = Restarts(intensity)
        self.last_ending = ""
        self.has_refused = False
        self.last_words: list[str] = []
        self.trace_id = trace_id
        self._leaving: list[Instance] = []
        self._launcher, self._clock, self._on_change = launcher, clock, on_change
        self._active_due_s = self._standby_due_s = self._retry_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._has_standby = False
        self._is_closed = False

    def instances(self) -> list[Instance]:
        """Everybody in this place, those on their way out included."""
        return [i for i in (self.active, self.standby, *self._leaving) if i is not None]

    @property
    def condition(self) -> Condition:
        """In one word: degraded means that it failed too often and is retried slowly."""
        if self._is_closed:
            return "stopped"
        if self.restarts.is_degraded:
            return "degraded"
        if self.active is None:
            return "waiting"
        return "up" if self.is_up else "starting"

    @property
    def is_up(self) -> bool:
        """Somebody accepts connections."""
        return self.active is not None and self.active.accepting

    def allow_standby(self) -> None:
        """From now on keep a standby, where the specification has one."""
        self._has_standby = self.spec.has_standby
        self.fill()

    def fill(self) -> None:
        """Promote or start what is missing and due; otherwise wait for its time."""
        if self._is_closed:
            return
        now_s = self._clock.monotonic()
        if self.active is None and self.standby is not None:
            if self.standby.state == "ready":
                self._promote()
        elif self.active is None and now_s >= max(self._active_due_s, self._retry_at_s):
            self.active = self._start(standby=False)
        if self._wants_standby() and now_s >= max(self._standby_due_s, self._retry_at_s):
            self.standby = self._start(standby=True)
        self._wait_for_due(now_s)

    def retry(self) -> None:
        """What made the last start impossible is over (a template is there)."""
        self._retry_at_s = 0.0
        self.fill()

    def tick(self, now_s: float) -> None:
        """Forget the past of a child that has been up for long enough."""
        for instance, restarts in (
            (self.active, self.restarts),
            (self.standby, self.standby_restarts),
        ):
            if instance is None or instance.state != "ready" or not restarts.is_degraded:
                continue
            # What a promoted standby did before it served says nothing about what ended the others.
            since_s = instance.accepting_s if instance is self.active else instance.ready_s
            if restarts.is_stable(now_s - since_s):
                restarts.recovered()
                log.info(
                    "child_recovered",
                    trace_id=self.trace_id,
                    child=self.spec.label,
                    pid=instance.pid,
                )

    def start_successor(self) -> Instance | None:
        """A standby with today's code in place of the one there is, which stays when none can start
        (None). The place is never empty meanwhile: whoever looks would fill it."""
        successor = self._start(standby=True)
        if successor is not None:
            replaced, self.standby = self.standby, successor
            if replaced is not None:
                self.dismiss(replaced)
        return successor

    def dismiss(self, instance: Instance) -> None:
        """Ask somebody of this place to leave; the exit will not count as a failure.

        When it is the active one, a ready standby takes its place at once.
        """
        self._leaving.append(instance)
        if self.active is instance:
            self.active = None
        instance.dismiss()
        loop = asyncio.get_running_loop()
        loop.call_later(self.spec.drain_s, instance.kill, "did not drain in time")

    async def start_anew(self) -> None:
        """Let the active one drain and leave, then start another; clients wait meanwhile."""
        self._active_due_s = float("inf")
        if self.active is not None:
            predecessor = self.active
            self.dismiss(predecessor)
            await predecessor.gone.wait()
        self._active_due_s = 0.0
        self.fill()
        if self.active is not None:
            await self.active.ready_or_gone.wait()

    async def drain(self) -> None:
        """Let everybody leave within the child's budget, then end them. The place stays empty."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        everybody = self.instances()
        for instance in everybody:
            instance.dismiss()
        for instance in everybody:
            await wait_for(instance.gone, self.spec.drain_s)
            instance.kill("did not drain in time")

    def kill(self) -> None:
        """End everybody now."""
        self._is_closed = True
        for instance in self.instances():
            instance.kill("mesh stops")

    def _wants_standby(self) -> bool:
        return self._has_standby and self.standby is None and self.is_up

    def _start(self, *, standby: bool) -> Instance | None:
        instance = self._launcher.start(
            self.spec,
            standby=standby,
            restarts=self.restarts.count,
            trace_id=self.trace_id,
            on_change=self._changed,
        )
        if instance is None:
            self._retry_at_s = self._clock.monotonic() + _retry_s
        return instance

    def _promote(self) -> None:
        assert self.standby is not None, "there is somebody to promote"
        self.active, self.standby = self.standby, None
        self._standby_due_s = max(self._standby_due_s, self._clock.monotonic() + standby_delay_s)
        self.active.promote(self.trace_id)
        log.info(
            "standby_promoted",
            trace_id=self.trace_id,
            child=self.spec.label,
            pid=self.active.pid,
            child_instance=self.active.identity,
        )

    def _changed(self, instance: Instance) -> None:
        if instance.state == "gone":
            self._left(instance)
        elif instance.state == "ready" and instance is self.standby:
            log.info(
                "standby_ready",
                trace_id=self.trace_id,
                child=self.spec.label,
                pid=instance.pid,
                child_instance=instance.identity,
            )
        self.fill()
        self._on_change(self, instance)

    def _left(self, instance: Instance) -> None:
        if instance in self._leaving:
            self._leaving.remove(instance)
            return
        if instance.pid == 0:
            self._forget(instance)
            return
        now_s = self._clock.monotonic()
        was_active = instance is self.active
        restarts = self.restarts if was_active else self.standby_restarts
        is_refusal = instance.has_refused
        delay_s = restarts.exited(now_s, random.random(), is_refusal=is_refusal)
        if was_active:
            self.active, self._active_due_s = None, now_s + delay_s
            self.last_ending, self.has_refused = instance.ending(), is_refusal
            self.last_words = list(instance.stderr.last_lines)
        else:
            self.standby = None
        self._standby_due_s = now_s + max(delay_s, standby_delay_s)
        if not self._is_closed:
            self.trace_id = new_trace_id()
            log.error(
                "child_exited",
                trace_id=self.trace_id,
                child=self.spec.label,
                pid=instance.pid,
                child_instance=instance.identity,
                was_active=was_active,
                ending=instance.ending(),
                degraded=restarts.is_degraded,
                delay_s=round(delay_s, 3),
            )

    def _forget(self, instance: Instance) -> None:
        """A fork that did not happen is the template's failure, which counts it: try again."""
        self._retry_at_s = self._clock.monotonic() + _retry_s
        if instance is self.active:
            self.active = None
        elif instance is self.standby:
            self.standby = None

    def _wait_for_due(self, now_s: float) -> None:
        """One timer for whichever start is due next."""
        due_s = float("inf")
        if self.active is None and self.standby is None:
            due_s = max(self._active_due_s, self._retry_at_s)
        elif self._wants_standby():
            due_s = max(self._standby_due_s, self._retry_at_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_s < float("inf"):
            delay_s = max(0.0, due_s - now_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.fill)
