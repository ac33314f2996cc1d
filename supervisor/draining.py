"""The end of a mesh: services in the reverse of their order, then whatever is left."""

import asyncio
from collections.abc import Sequence

from shared import logs
from supervisor.reaper import Reaper
from supervisor.slot import Slot
from supervisor.spec import drain_s
from supervisor.template import Template

log = logs.get("supervisor.draining")
kill_s_max = 2.0
strangers_rounds_max = 100
_strangers_pause_s = 0.01


async def drain(slots: Sequence[Slot], template: Template | None, reaper: Reaper) -> None:
    """Drain the last service first, so that the edge finishes while the others still answer; kill
    what is left after `drain_s`, and what it leaves behind."""
    if template is not None:
        template.close()
    services = dict.fromkeys(slot.spec.service for slot in reversed(slots))
    try:
        async with asyncio.timeout(drain_s):
            for service in services:
                group = [slot for slot in slots if slot.spec.service == service]
                await asyncio.gather(*(slot.drain() for slot in group))
    except TimeoutError:
        log.warning("drain_cut", drain_s=drain_s)
    await _kill(slots, template)
    # What they leave behind comes to us only when they have ended, children after parents.
    for _ in range(strangers_rounds_max):
        if not reaper.kill_strangers():
            break
        await asyncio.sleep(_strangers_pause_s)


async def _kill(slots: Sequence[Slot], template: Template | None) -> None:
    everybody = [instance for slot in slots for instance in slot.instances()]
    if template is not None and template.instance is not None:
        everybody.append(template.instance)
    for slot in slots:
        slot.kill()
    waiting = [asyncio.create_task(instance.gone.wait()) for instance in everybody]
    if waiting:
        await asyncio.wait(waiting, timeout=kill_s_max)
