"""One life of one child: what it told us, what we know of its process, how it ended."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Literal

from shared.channel import (
    EXIT_REFUSED,
    EXIT_UNFIT,
    Beat,
    Channel,
    Durations,
    Hello,
    Message,
    Pressure,
    Promote,
    Promoted,
    Ready,
    Stop,
    Stopped,
)
from shared.clock import Clock
from supervisor import proc
from supervisor.liveness import Signs, Starvation
from supervisor.reaper import Exit
from supervisor.stderr import StderrPipe

_IN_ITS_OWN_WORDS = {EXIT_REFUSED: "refused", EXIT_UNFIT: "unfit"}
"""Exit codes of children whose last line on stderr is the reason."""
_silent_s, _unanswered_s = 1.0, 3.0
"""Two heartbeats, or two probes with their time-outs: only then is it asked whether it starves."""
State = Literal["starting", "ready", "draining", "gone"]


class Instance:
    """A child process. Its owner is told by `on_change` after each change of state.

    States: starting → (READY) → ready → (asked to leave) → draining → gone; gone from anywhere.
    `accepting`: it was told to accept connections, and not yet to stop.
    """

    def __init__(
        self, *, label: str, identity: str, is_standby: bool, clock: Clock, stderr: StderrPipe
    ) -> None:
        self.label, self.identity, self.is_standby = label, identity, is_standby
        self.state: State = "starting"
        self.pid = 0
        self.accepting = False
        self.exit: Exit | None = None
        self.reason = ""
        self.durations_s: dict[str, float] = {}
        self.lag_s = 0.0
        self.stderr = stderr
        self.started_s = clock.monotonic()
        self.ready_s = self.beat_s = self.answered_s = self.started_s
        self.accepting_s = self.started_s
        self._stopped_from_s: float | None = None
        self._starvation = Starvation()
        self.ready_or_gone = asyncio.Event()
        self.promoted_or_gone = asyncio.Event()
        self.stopped_or_gone = asyncio.Event()
        self.gone = asyncio.Event()
        self.on_change: Callable[[Instance], None] = lambda instance: None
        self.on_hello: Callable[[int], None] = lambda pid: None
        self._clock = clock
        self._channel: Channel | None = None

    def attach(self, channel: Channel) -> None:
        """The line to the process."""
        self._channel = channel

    def on_message(self, message: Message) -> None:
        """What the child says; called by its channel."""
        now_s = self._clock.monotonic()
        match message:
            case Hello(pid):
                self.on_hello(pid)
            case Ready(durations_s) if self.state == "starting":
                self.durations_s = dict(durations_s)
                self.ready_s = self.beat_s = self.answered_s = self.accepting_s = now_s
                self.accepting = not self.is_standby
                self.ready_or_gone.set()
                self._change("ready")
            case Durations(durations_s):
                self.durations_s |= durations_s
            case Beat(lag_s):
                self.beat_s, self.lag_s = now_s, lag_s
            case Promoted():
                self.promoted_or_gone.set()
                self.on_change(self)
            case Stopped():
                self.stopped_or_gone.set()
            case _:
                pass

    def on_exit(self, ended: Exit) -> None:
        """The process is reaped; its pid must not be used any more."""
        self.exit = ended
        self._leave()

    def lost(self, reason: str) -> None:
        """The process was never ours to wait for (a fork that did not happen)."""
        self.reason = reason
        self._leave()

    def promote(self, trace_id: str) -> None:
        """Tell a ready standby to accept from now on; `trace_id` names the operation."""
        assert self.state == "ready", "only a ready standby is promoted"
        self.accepting, self.answered_s = True, self._clock.monotonic()
        self.accepting_s = self.answered_s
        self._send(Promote(trace_id))

    def press(self, pressure: Pressure) -> None:
        """Tell it whose memory is short, or that it is over."""
        self._send(pressure)

    def stop_accepting(self) -> None:
        """Tell the active one that a successor stands ready."""
        self.accepting = False
        self._send(Stop())

    def send_packet(self, packet: bytes, descriptors: list[int]) -> bool:
        """Hand a fork request to the template; False when it cannot be told."""
        return self._channel is not None and self._channel.send_packet(packet, descriptors)

    def _send(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def dismiss(self) -> None:
        """Ask it to drain and leave; one that is still starting has nothing to finish."""
        if self.state == "starting":
            self.kill("not needed any more")
        elif self.state == "ready":
            self.accepting = False
            self._signal(signal.SIGTERM)
            self._change("draining")

    def kill(self, reason: str) -> None:
        """End it now."""
        if self.state != "gone":
            self.reason = reason
            self._signal(signal.SIGKILL)

    def signs(self, now_s: float) -> Signs:
        """What liveness is judged by; looks at the process."""
        found = proc.stat(self.pid) if self.pid else None
        if found is None or found.state != proc.STOPPED:
            self._stopped_from_s = None
        elif self._stopped_from_s is None:
            self._stopped_from_s = now_s
        if found is not None:
            is_silent = now_s > min(self.beat_s + _silent_s, self.answered_s + _unanswered_s)
            is_runnable = is_silent and proc.is_any_thread_runnable(self.pid)
            self._starvation.look(now_s, found.cpu_s, is_runnable)
        starved_s, unanswered_starved_s = self._starvation.since(self.beat_s, self.answered_s)
        return Signs(
            pid=self.pid,
            is_ready=self.state != "starting",
            is_accepting=self.accepting,
            started_s=self.started_s,
            beat_s=self.beat_s,
            answered_s=self.answered_s,
            stopped_from_s=self._stopped_from_s,
            starved_s=starved_s,
            unanswered_starved_s=unanswered_starved_s,
        )

    @property
    def has_refused(self) -> bool:
        """It left because what it was given cannot be used; the reason is its last words."""
        return self.exit is not None and self.exit.code == EXIT_REFUSED

    def ending(self) -> str:
        """How it ended, in words."""
        if self.exit is not None and (word := _IN_ITS_OWN_WORDS.get(self.exit.code)):
            return f"{word}: {self.stderr.last_lines[-1] if self.stderr.last_lines else ''}"
        parts = [str(self.exit) if self.exit else "", self.reason]
        return ", ".join(part for part in parts if part) or "running"

    def _signal(self, number: signal.Signals) -> None:
        if self.pid:
            os.kill(self.pid, number)

    def _leave(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self.stderr.close()
        self.accepting = False
        self.state = "gone"
        for event in (self.ready_or_gone, self.promoted_or_gone, self.stopped_or_gone, self.gone):
            event.set()
        self.on_change(self)

    def _change(self, state: State) -> None:
        self.state = state
        self.on_change(self)


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Wait for one of an instance's events; False when it does not come in time."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
