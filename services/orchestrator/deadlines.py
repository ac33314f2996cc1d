"""When waiting things must end: one wheel of time slots instead of a timer for each."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

NEVER = float("inf")
"""A slot, or a moment, that does not come."""


class Timed(Protocol):
    """What a wheel holds; `slot` belongs to the wheel while it is in there."""

    deadline_s: float
    slot: int


class Awaited(Timed, Protocol):
    """A call to another process; `expire` is called when it has not answered in time."""

    def expire(self) -> None:
        """Give up waiting."""


T = TypeVar("T", bound=Timed)


class Wheel(Generic[T]):
    """Items by the slot of time in which their deadline lies.

    An item is due once its slot is over: up to one grain after its deadline, never before it.
    `on_earlier(when_s)` is called when an item is added that is due before all others were;
    `count` is how many are in there.
    """

    def __init__(self, grain_s: float, on_earlier: Callable[[float], None]) -> None:
        self._grain_s = grain_s
        self._on_earlier = on_earlier
        self._slots: dict[int, set[T]] = {}
        self._earliest = NEVER
        self.count = 0

    def add(self, item: T) -> None:
        """Watch the item until it is discarded or due."""
        slot = item.slot = int(item.deadline_s / self._grain_s)
        items = self._slots.get(slot)
        if items is None:
            self._slots[slot] = {item}
            if slot < self._earliest:
                self._earliest = float(slot)
                self._on_earlier((slot + 1) * self._grain_s)
        else:
            items.add(item)
        self.count += 1

    def discard(self, item: T) -> None:
        """Forget an item that ended in time; one that is not in there is ignored."""
        items = self._slots.get(item.slot)
        if items is None or item not in items:
            return
        items.discard(item)
        self.count -= 1
        if not items:
            del self._slots[item.slot]

    def expired(self, now_s: float) -> list[T]:
        """Remove and return the items whose slot is over, the earliest first."""
        over = int(now_s / self._grain_s) - 1
        slots = sorted(slot for slot in self._slots if slot <= over)
        due = [item for slot in slots for item in self._slots.pop(slot)]
        self._earliest = float(min(self._slots)) if self._slots else NEVER
        self.count -= len(due)
        return due

    @property
    def next_s(self) -> float:
        """When the earliest item is due; infinite when there is none. May be early: an item that
        was discarded still counts until the next `expired`."""
        return (self._earliest + 1) * self._grain_s
