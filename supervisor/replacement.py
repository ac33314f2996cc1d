"""Planned replacement of one child, make before break.

The active one goes on until a successor stands ready; it stops accepting, the successor starts,
and it drains. Whatever fails on the way leaves the old one where it is, and a crash meanwhile is
handled by the slot as at any time.
"""

from supervisor.instance import wait_for
from supervisor.slot import Slot

stop_s_max = 2.0
"""How long the predecessor may take to stop accepting before its successor starts all the same."""


async def replace(slot: Slot) -> str | None:
    """None when a successor is active, else why there is none.

    A child that may not overlap its successor is drained first; its clients wait in the backlog.
    """
    if not slot.spec.overlaps or slot.active is None:
        await slot.start_anew()
        return None if slot.is_up else f"it ended: {slot.last_ending}"
    successor = slot.start_successor()
    if successor is None:
        return "the successor could not be started"
    await successor.ready_or_gone.wait()
    if successor.state == "gone":
        return f"the successor ended: {successor.ending()}"
    predecessor = slot.active
    if predecessor is not None and slot.standby is successor:
        predecessor.stop_accepting()
        await wait_for(predecessor.stopped_or_gone, stop_s_max)
    if slot.standby is successor and slot.active is not None:
        slot.dismiss(slot.active)
    await successor.promoted_or_gone.wait()
    return None if successor.state == "ready" else f"the successor ended: {successor.ending()}"
