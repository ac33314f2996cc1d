"""The lines that a start prints: pure text from what is known."""

from shared.home import Home
from shared.inheritance import log_path
from supervisor.instance import Instance
from supervisor.mesh import EDGE, Mesh
from supervisor.slot import Slot

_stderr_lines = 8


def up_lines(slot: Slot, instance: Instance) -> list[str]:
    """One process is up: how long each step of its start took."""
    steps = ", ".join(f"{name} {seconds:.3f}" for name, seconds in instance.durations_s.items())
    total_s = instance.answered_s - instance.started_s
    return [f"{slot.spec.label:<16} up in {total_s:.2f} s ({steps}) pid {instance.pid}"]


def ready_line(mesh: Mesh, home: Home, seconds: float) -> list[str]:
    """The mesh is up: its socket and something to try."""
    lines = [f"{'mesh':<16} {'ready' if mesh.is_ready else 'live'} in {seconds:.2f} s"]
    if not mesh.is_ready:
        lines.append("no policy yet: publish a model, then promote it")
    lines.append(f"socket: {home.socket_path(EDGE)}")
    lines.append(f"try: mortise status --home {home.path}")
    return lines


def failure_lines(mesh: Mesh, home: Home, reason: str) -> list[str]:
    """Why the mesh cannot be ready, with the last words of whoever failed."""
    lines = [f"cannot start: {reason}"]
    for slot in mesh.slots:
        if slot.restarts.is_degraded:
            lines += [f"  {line}" for line in slot.last_words[-_stderr_lines:]]
            path = log_path(home.path, slot.spec.service, slot.spec.index)
            lines.append(f"  log: {path}")
    if mesh.template is not None and mesh.template.restarts.is_degraded:
        lines += [f"  {line}" for line in mesh.template.last_words[-_stderr_lines:]]
    return lines
