"""How many model runtimes run: one more is a fork of the template that maps the same weights."""

import asyncio
from typing import Any

from shared import logs
from shared.clock import Clock
from shared.rpc.call import new_trace_id
from supervisor.mesh import Mesh
from supervisor.slot import Slot
from supervisor.spec import RUNTIME

log = logs.get("supervisor.replicas")
poll_s = 0.005
"""How often one that starts is asked whether it is ready."""


class Replicas:
    """Changes their number, one change at a time. The file of the home keeps its own: what is
    asked for here holds until the mesh stops."""

    def __init__(self, mesh: Mesh, clock: Clock) -> None:
        self._mesh, self._clock = mesh, clock
        self._changing = asyncio.Lock()
        all_specs = (*mesh.spec.children, *mesh.spec.spares)
        self._specs = [spec for spec in all_specs if spec.service == RUNTIME]

    async def ask(self, count: int) -> dict[str, Any]:
        """`{"replicas", "started"}` once every new one serves, or `{"error"}`."""
        if not 1 <= count <= len(self._specs):
            return {
                "error": f"{count} replicas asked for, 1 to {len(self._specs)} can run;"
                " [runtime] replicas_max in mortise.toml is how many sockets a start binds"
            }
        async with self._changing:
            return await self._change(count)

    async def _change(self, count: int) -> dict[str, Any]:
        running = sorted(self._running(), key=lambda slot: slot.spec.index)
        trace_id = new_trace_id()
        log.info("replicas_asked", trace_id=trace_id, before=len(running), after=count)
        for slot in reversed(running[count:]):
            await self._mesh.remove(slot)
        begun_s = self._clock.monotonic()
        added = [self._mesh.add(spec, trace_id) for spec in self._specs[len(running) : count]]
        started = []
        for slot in added:
            reason = await self._wait_serving(slot)
            if reason is not None:
                log.error("replicas_failed", trace_id=trace_id, reason=reason)
                return {"error": f"{slot.spec.label} {reason}; it goes on trying"}
            assert slot.active is not None, "it serves"
            ready_ms = round((self._clock.monotonic() - begun_s) * 1e3, 1)
            log.info("replica_ready", trace_id=trace_id, pid=slot.active.pid, ready_ms=ready_ms)
            row = {"index": slot.spec.index, "pid": slot.active.pid, "ready_ms": ready_ms}
            started.append(row)
        return {"replicas": count, "started": started}

    async def _wait_serving(self, slot: Slot) -> str | None:
        """None once it accepts and is ready by its own word; else why not, in time."""
        ends_s = self._clock.monotonic() + self._mesh.spec.ready_s_max
        while True:
            health = self._mesh.health(slot)
            if slot.is_up and health is not None and health.ready:
                return None
            if slot.restarts.is_degraded:
                return f"does not start: {slot.last_ending}"
            if self._clock.monotonic() > ends_s:
                return "is not ready: " + (", ".join(health.reasons) if health else slot.condition)
            self._mesh.probes[slot.spec.label].now()
            await asyncio.sleep(poll_s)

    def _running(self) -> list[Slot]:
        return [slot for slot in self._mesh.slots if slot.spec.service == RUNTIME]
