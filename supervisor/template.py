"""The template as the supervisor sees it: the pre-imported process that runtimes are forked from.

Its own code is `services/model_runtime/template.py` over `shared/forking.py`. When it dies, what it
forked lives on (they are the supervisor's children), and a new one is made.
"""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import replace

from shared import logs
from shared.channel import Channel, pair
from shared.clock import Clock
from shared.rpc.call import new_trace_id
from supervisor.instance import Instance
from supervisor.launcher import Birth, Launcher
from supervisor.liveness import Patience, judge
from supervisor.reaper import Reaper
from supervisor.restart import Intensity, Restarts
from supervisor.spec import ChildSpec
from supervisor.stderr import StderrPipe

log = logs.get("supervisor.template")
NAME = "template"


class Template:
    """Keeps one template alive; `on_ready` is called whenever one can fork."""

    def __init__(
        self,
        spec: ChildSpec,
        *,
        launcher: Launcher,
        reaper: Reaper,
        intensity: Intensity,
        clock: Clock,
        trace_id: str,
        on_ready: Callable[[Instance], None],
    ) -> None:
        self.spec = spec
        self.instance: Instance | None = None
        self.restarts = Restarts(intensity)
        self.last_ending = ""
        self.last_words: list[str] = []
        self.trace_id = trace_id
        self._launcher, self._reaper, self._clock = launcher, reaper, clock
        self._on_ready = on_ready
        self._is_closed = False
        self._is_renewed = False
        launcher.fork = self.fork

    def start(self) -> None:
        """Exec a template unless there is one or the mesh is stopping."""
        if self._is_closed or self.instance is not None:
            return
        stderr = StderrPipe(NAME)
        instance = Instance(
            label=NAME,
            identity=NAME,
            is_standby=True,
            clock=self._clock,
            stderr=stderr,
        )
        around = self._launcher.surroundings
        facts = around.facts(
            self.spec,
            Birth(NAME, True, self.restarts.count, self.trace_id),
            self._clock.monotonic_us(),
        )
        ours, theirs = pair()
        with theirs:
            pid = self._launcher.execute(
                self.spec.command,
                facts,
                descriptors={"control": theirs.fileno()},
                stderr=stderr.descriptor,
                threads=self.spec.threads,
                is_template=True,
            )
        stderr.close_child_end()
        instance.attach(
            Channel(ours, is_child=False, on_message=instance.on_message, on_closed=_ignore)
        )
        self.instance = instance
        instance.on_change = self._changed
        if pid == 0:
            instance.lost("could not be started")
            return
        instance.pid = pid
        self._reaper.watch(pid, instance.on_exit)

    def fork(self, facts: bytes, descriptors: list[int]) -> bool:
        """Ask for a worker; False when there is no ready template."""
        instance = self.instance
        if instance is None or instance.state != "ready":
            return False
        return instance.send_packet(facts, descriptors)

    def judge(self, now_s: float, patience: Patience, grace_from_s: float) -> None:
        """End one that does not get ready, or is stopped; a template has no heartbeat."""
        if self.instance is None:
            return
        signs = replace(self.instance.signs(now_s), beat_s=math.inf, answered_s=math.inf)
        reason = judge(signs, now_s, patience, grace_from_s)
        if reason is not None:
            log.error("template_stuck", pid=signs.pid, reason=reason)
            self.instance.kill(reason)

    def kill(self, reason: str) -> None:
        """End a template that does not fork; a new one follows."""
        if self.instance is not None:
            self.instance.kill(reason)

    def renew(self) -> None:
        """Make a new one in its place, with today's code; this end does not count as a failure."""
        self._is_renewed = self.instance is not None
        self.kill("renewed")
        self.start()

    def close(self) -> None:
        """End it for good."""
        self._is_closed = True
        self.kill("mesh stops")

    def _changed(self, instance: Instance) -> None:
        now_s = self._clock.monotonic()
        if instance.state == "ready":
            log.info(
                "template_ready",
                trace_id=self.trace_id,
                pid=instance.pid,
                durations_s=instance.durations_s,
            )
            self._on_ready(instance)
        elif instance.state == "gone":
            self.instance = None
            self.last_ending = instance.ending()
            self.last_words = list(instance.stderr.last_lines)
            if self._is_renewed:
                self._is_renewed = False
                self.start()
                return
            delay_s = self.restarts.exited(now_s, random.random())
            if not self._is_closed:
                self.trace_id = new_trace_id()
                log.error(
                    "template_exited",
                    trace_id=self.trace_id,
                    pid=instance.pid,
                    ending=self.last_ending,
                    delay_s=round(delay_s, 3),
                )
                asyncio.get_running_loop().call_later(delay_s, self.start)


def _ignore() -> None:
    """The end of the template's line is followed by its exit, which the reaper reports."""
