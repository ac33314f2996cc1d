"""One supervised life on the loop: start, READY, beats, promotion, drain."""

import asyncio
import gc
import signal
from typing import Any

from contracts.limits import heartbeat_s
from shared import compiled, logs
from shared.channel import (
    Beat,
    Channel,
    Durations,
    Message,
    Pressure,
    Promote,
    Promoted,
    Ready,
    Stop,
    Stopped,
)
from shared.environment import Environment
from shared.inheritance import Inheritance
from shared.service import Service, Unfit, build_server

log = logs.get("shared.life")
service_drain_s_min = 0.5
"""What the service's own drain gets when the connections have used up the budget."""


class Life:
    """Drives one service from its start to its drain as the supervisor says."""

    def __init__(
        self, service_class: type[Service], environment: Environment, inherited: Inheritance
    ) -> None:
        self._environment = environment
        self._clock = environment.clock
        self._inherited = inherited
        self._service = service_class(environment)
        self._server = build_server(self._service, environment)
        self._drain_asked = asyncio.Event()
        self._fatal: BaseException | None = None
        self._is_active = False
        self._trace_id = inherited.facts.trace_id
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Return when drained; raise what makes the process unfit to go on."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_loop_exception)
        loop.add_signal_handler(signal.SIGTERM, self._drain_asked.set)
        self._channel = Channel(
            self._inherited.control,
            is_child=True,
            on_message=self._on_message,
            on_closed=self._drain_asked.set,
        )
        await self._start()
        self._beat(self._clock.monotonic())
        await self._drain_asked.wait()
        if self._fatal is not None:
            raise self._fatal
        await self._drain()

    async def _start(self) -> None:
        begun_s = self._clock.monotonic()
        await self._service.start()
        reported_s = sum(self._environment.startup.durations_s.values())
        if not self._environment.standby:
            await self._activate()
        elif self._inherited.listener is not None:
            await self._server.start(self._inherited.listener, serving=False)
        gc.collect()
        gc.freeze()
        durations_s = self._environment.startup.durations_s
        if sum(durations_s.values()) == reported_s and not set(durations_s) - {"import", "fork"}:
            durations_s["start"] = self._clock.monotonic() - begun_s
        self._channel.send(Ready(durations_s))
        self._environment.startup.on_add = lambda: self._channel.send(Durations(durations_s))
        log.info(
            "ready",
            trace_id=self._trace_id,
            standby=self._environment.standby,
            compiled=compiled.is_in_use(),
            durations_s=durations_s,
        )

    async def _activate(self) -> None:
        """Accept connections from now on."""
        self._is_active = True
        await self._service.promoted()
        assert self._inherited.listener is not None, "an active service has a socket"
        if self._environment.standby:
            await self._server.start_serving()
        else:
            await self._server.start(self._inherited.listener)

    def _on_message(self, message: Message) -> None:
        if isinstance(message, Promote) and not self._is_active:
            self._trace_id = message.trace_id
            self._spawn_promotion()
        elif isinstance(message, Stop):
            self._server.stop_accepting()
            self._channel.send(Stopped())
        elif isinstance(message, Pressure):
            self._service.pressed(message)
        else:
            log.warning("message_ignored", message=type(message).__name__)

    def _spawn_promotion(self) -> None:
        task = asyncio.create_task(self._promote(), name="promote")
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    async def _promote(self) -> None:
        await self._activate()
        self._channel.send(Promoted())
        log.info("promoted", trace_id=self._trace_id)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._die_of(error)

    def _beat(self, due_s: float) -> None:
        """Tell the supervisor that the loop turns, and how late it is."""
        now_s = self._clock.monotonic()
        self._channel.send(Beat(max(0.0, now_s - due_s)))
        due_s = max(due_s + heartbeat_s, now_s)
        asyncio.get_running_loop().call_later(due_s - now_s, self._beat, due_s)

    async def _drain(self) -> None:
        """Finish what is in flight, then flush, both within the budget."""
        ends_s = self._clock.monotonic() + self._inherited.facts.drain_s
        self._server.stop_accepting()
        await self._server.drain(self._inherited.facts.drain_s)
        left_s = max(service_drain_s_min, ends_s - self._clock.monotonic())
        try:
            await asyncio.wait_for(self._service.drain(), left_s)
        except TimeoutError:
            log.exception("drain_cut", drain_s=self._inherited.facts.drain_s)
        self._channel.close()
        log.info("drained")

    def _on_loop_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised: log it; a broken assertion or an unfit process ends."""
        error = context.get("exception")
        log.error("loop_exception", message=context.get("message"), exc_info=error)
        if isinstance(error, AssertionError | Unfit):
            self._die_of(error)

    def _die_of(self, error: BaseException) -> None:
        self._fatal = error
        self._drain_asked.set()
