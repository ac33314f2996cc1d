"""What a start prints: each process as it becomes ready, its steps beside their budgets, then the
socket and a line to try."""

from collections.abc import Callable

from contracts.service import Health
from shared import logs
from shared.home import Home
from shared.inheritance import log_path
from supervisor.hint import line_to_look, line_to_try, lines_to_repair
from supervisor.instance import Instance
from supervisor.mesh import EDGE, Mesh
from supervisor.slot import Slot
from supervisor.startup import TEMPLATE, in_words, steps_of

log = logs.get("supervisor.announce")
Say = Callable[[str], None]
_stderr_lines = 8


def cause_of(lines: list[str]) -> list[str]:
    """What a traceback ends with, which is its cause in words; other last words as they are. The
    log has all of it."""
    frames = [at for at, line in enumerate(lines) if line.startswith('  File "')]
    if not frames:
        return lines
    said = (at for at in range(frames[-1] + 1, len(lines)) if not lines[at].startswith(" "))
    return lines[next(said, frames[-1]) :]


class Announcer:
    """Says each thing once, through `say`; whoever reads may be gone, which stops nothing."""

    def __init__(self, say: Say) -> None:
        self._sink = say
        self._is_heard = True
        self._said: set[str] = set()
        self._is_starting = True

    def forks(self, template: Instance) -> None:
        """The template has imported the backend."""
        if self._is_starting:
            self._say_steps(TEMPLATE, template, template.ready_s)

    def answered(self, slot: Slot, instance: Instance, health: Health) -> None:
        """A service answered: announce it when it is ready by its own word."""
        if instance.identity in self._said or not health.ready:
            return
        self._said.add(instance.identity)
        if self._is_starting:
            self._say_steps(slot.spec.label, instance, instance.answered_s)
        else:
            log.info("child_ready", child=slot.spec.label, pid=instance.pid)

    def ready(
        self, mesh: Mesh, home: Home, seconds: float, shortfalls: list[str], *, serves: bool
    ) -> None:
        """The mesh is up, whole or with shortfalls; `serves`: some model can be asked. The last
        lines of a start."""
        for slot in mesh.slots:
            if slot.active is not None and slot.active.identity not in self._said:
                self._say_steps(slot.spec.label, slot.active, slot.active.answered_s)
        self._is_starting = False
        if shortfalls:
            self._say(f"{'mesh':<16} degraded in {seconds:.2f} s: {'; '.join(shortfalls)}")
            if not serves:
                self._say(
                    "  nothing can be asked: every model that is loaded needs what is missing"
                )
            for line in lines_to_repair(home.path):
                self._say(f"  {line}")
        else:
            self._say(f"{'mesh':<16} {'ready' if mesh.is_ready else 'live'} in {seconds:.2f} s")
        if not mesh.is_ready:
            self._say("no policy yet: publish a model, then promote it")
        self._say(f"socket: {home.socket_path(EDGE)}")
        self._say(f"try: {line_to_try(home.path) if serves else line_to_look(home.path)}")

    def failed(self, mesh: Mesh, home: Home, reason: str) -> None:
        """Why the mesh cannot be ready, with the last words of whoever failed."""
        self._say(f"cannot start: {reason}")
        for slot in mesh.slots:
            if slot.restarts.is_degraded:
                if slot.has_refused:  # the reason has its words
                    self._say("  correct that and start again")
                else:
                    self._say_words(cause_of(slot.last_words))
                service, index = slot.spec.service, slot.spec.index
                self._say(f"  log: {log_path(home.path, service, index)}")
        if mesh.template is not None and mesh.template.restarts.is_degraded:
            self._say_words(cause_of(mesh.template.last_words))

    def _say_steps(self, label: str, instance: Instance, until_s: float) -> None:
        steps = in_words(steps_of(label, instance.durations_s))
        total_s = until_s - instance.started_s
        self._say(f"{label:<16} ready in {total_s:.2f} s ({steps}) pid {instance.pid}")

    def _say_words(self, lines: list[str]) -> None:
        for line in lines[-_stderr_lines:]:
            self._say(f"  {line}")

    def _say(self, line: str) -> None:
        if not self._is_heard:
            return
        try:
            self._sink(line)
        except OSError as error:
            self._is_heard = False
            log.info("nobody_reads", reason=str(error))
