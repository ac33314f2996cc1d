"""How requests ended and how long they took, kept in time buckets, so that rolling windows can be
summed. Pure: counts in, sums out; wall time is given by the caller.

Invariant: everything that is added is in one bucket of each width. The buckets of a width reach
back as far as the longest window that is summed from them, and no further.
"""

from dataclasses import dataclass

import msgspec

Counts = dict[str, int]
"""What was counted, by the names that `supervisor/sla_counters.py` gives."""
MESH = ""
"""Instead of a model: what is counted of the mesh as a whole."""
models_max = 64
"""Models of one bucket; further ones are counted together under `OTHERS`."""
OTHERS = "other"


@dataclass(frozen=True, slots=True)
class Window:
    """So many seconds back from now, summed from buckets of `width_s`: it covers up to a width
    more than its name says, never less."""

    name: str
    seconds: int
    width_s: int


WINDOWS = (
    Window("5m", 300, 60),
    Window("1h", 3_600, 60),
    Window("24h", 86_400, 900),
    Window("30d", 30 * 86_400, 21_600),
)
BUCKETS_MAX = {
    width_s: max(window.seconds for window in WINDOWS if window.width_s == width_s) // width_s + 1
    for width_s in {window.width_s for window in WINDOWS}
}
"""By width: 61 minutes, 97 quarters of an hour, 121 quarters of a day."""
assert sum(BUCKETS_MAX.values()) < 300, "with models_max the file is within its file_bytes_max"


class Kept(msgspec.Struct):
    """The history: `began_s` is when counting began, by the wall clock; buckets by width, then by
    their number since 1970, then by model."""

    began_s: float
    rings: dict[int, dict[int, dict[str, Counts]]] = msgspec.field(
        default_factory=lambda: {width_s: {} for width_s in BUCKETS_MAX}
    )

    def add(self, now_s: float, found: dict[str, Counts]) -> None:
        """Count by model what happened just now, and forget what no window reaches."""
        for width_s, count in BUCKETS_MAX.items():
            ring = self.rings.setdefault(width_s, {})
            number = int(now_s // width_s)
            bucket = ring.setdefault(number, {})
            for model, counts in found.items():
                name = model if model in bucket or len(bucket) < models_max else OTHERS
                add_counts(bucket.setdefault(name, {}), counts)
            # A clock that was set back leaves buckets ahead of it: as many as it keeps behind.
            for old in [key for key in ring if abs(key - number) >= count]:
                del ring[old]

    def over(self, window: Window, now_s: float) -> dict[str, Counts]:
        """The sums of a window that ends now, by model."""
        last = int(now_s // window.width_s)
        first = last - window.seconds // window.width_s
        sums: dict[str, Counts] = {}
        for number, bucket in self.rings.get(window.width_s, {}).items():
            if first <= number <= last:
                for model, counts in bucket.items():
                    add_counts(sums.setdefault(model, {}), counts)
        return sums

    def since_s(self, window: Window, now_s: float) -> float:
        """When a window that ends now began, or counting, if that was later."""
        first = int(now_s // window.width_s) - window.seconds // window.width_s
        return max(float(first * window.width_s), self.began_s)


def add_counts(into: Counts, counts: Counts) -> None:
    """Add up, name by name."""
    for name, count in counts.items():
        into[name] = into.get(name, 0) + count
