"""When waiting things must end: one wheel of time slots instead of a timer for each."""

from typing import Generic, Protocol, TypeVar


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
    `count` is how many are in there.
    """

    def __init__(self, grain_s: float, now_s: float) -> None:
        self._grain_s = grain_s
        self._slots: dict[int, set[T]] = {}
        self._swept = int(now_s / grain_s) - 1
        self.count = 0

    def add(self, item: T) -> None:
        """Watch the item until it is discarded or due; a deadline in the past is due next."""
        slot = max(int(item.deadline_s / self._grain_s), self._swept + 1)
        item.slot = slot
        items = self._slots.get(slot)
        if items is None:
            self._slots[slot] = {item}
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
        passed = range(self._swept + 1, over + 1)
        # After a long sleep of the machine there are more empty slots than filled ones.
        slots = passed if len(passed) <= len(self._slots) else sorted(self._slots)
        due = [item for slot in slots if slot <= over for item in self._slots.pop(slot, ())]
        self._swept = max(self._swept, over)
        self.count -= len(due)
        return due
