"""Looks after every child twice a second: who is stuck is killed, what nobody owns is ended."""

import asyncio
import time
from collections.abc import Sequence

from shared import logs
from shared.clock import Clock
from supervisor.instance import Instance
from supervisor.launcher import Launcher
from supervisor.liveness import Patience, Suspension, judge
from supervisor.reaper import Reaper
from supervisor.slot import Slot
from supervisor.template import Template

log = logs.get("supervisor.watch")


class Watch:
    """The tick. Its decisions are in `supervisor/liveness.py`."""

    def __init__(
        self,
        patience: Patience,
        slots: Sequence[Slot],
        template: Template | None,
        launcher: Launcher,
        reaper: Reaper,
        clock: Clock,
    ) -> None:
        self._patience, self._slots, self._template = patience, slots, template
        self._launcher, self._reaper, self._clock = launcher, reaper, clock
        self._suspension = Suspension(patience)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Tick now and from now on."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._patience.tick_s, self.start)
        self._tick()

    def close(self) -> None:
        """Judge nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        now_s = self._clock.monotonic()
        if self._suspension.tick(now_s, time.clock_gettime(time.CLOCK_BOOTTIME)):
            log.warning("time_lost", grace_s=self._patience.grace_s)
        grace_from_s = self._suspension.grace_from_s
        for slot in self._slots:
            for instance in slot.instances():
                reason = judge(instance.signs(now_s), now_s, self._patience, grace_from_s)
                if reason is not None:
                    self._end(instance, reason)
            slot.tick(now_s)
        if self._template is not None:
            self._template.judge(now_s, self._patience, grace_from_s)
        if (count := self._reaper.kill_strangers()) > 0:
            log.warning("strangers_killed", count=count)

    def _end(self, instance: Instance, reason: str) -> None:
        log.error("child_stuck", child=instance.label, pid=instance.pid, reason=reason)
        instance.kill(reason)
        if instance.pid == 0 and self._template is not None:
            self._template.kill("it does not fork")
            self._launcher.abandon(instance, reason)
