"""What a process uses of what its contract allows, and which limits are alarmed. Pure.

A resource is alarmed at `alarm_share` of its limit and stays so until it is below `over_share`.
What counts by the second (CPU, bytes moved) is judged over a whole window, so that a burst is none.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from contracts.infrastructure import FIELDS, REMEDIES, RESOURCES, UNITS, Resource, Terms
from supervisor.proc import Sample

window_s = 10.0
samples_max = 16
"""In a window; more often than that nobody looks."""
_mib = 1024 * 1024

Usage = Mapping[Resource, float | None]
"""In `contracts.infrastructure.UNITS`; None where the kernel does not tell, or not yet."""


@dataclass(frozen=True, slots=True)
class Change:
    """An alarm begins or is over: what was received, of which limit."""

    resource: Resource
    is_raised: bool
    used: float
    limit: float

    @property
    def limit_name(self) -> str:
        """The field of the policy."""
        return FIELDS[self.resource]

    @property
    def remedy(self) -> str:
        """What to do."""
        return REMEDIES[self.resource]


def usage_between(first: Sample, last: Sample, is_whole: bool) -> Usage:
    """What was used: by the last sample, and a second between the two. `is_whole`: they span a
    window, without which nothing is said by the second."""
    passed_s = last.at_s - first.at_s if is_whole else 0.0
    return {
        "memory": last.resident_bytes / _mib,
        "cpu": _rate(first.cpu_s, last.cpu_s, passed_s),
        "descriptors": float(last.descriptors),
        "socket": _rate(_socket_mib(first), _socket_mib(last), passed_s),
        "disk": _rate(_storage_mib(first), _storage_mib(last), passed_s),
    }


class Alarms:
    """Of one process, from its first sample to its end."""

    def __init__(self) -> None:
        self.usage: Usage = dict.fromkeys(RESOURCES)
        self.raised: dict[Resource, Change] = {}
        self._samples: deque[Sample] = deque(maxlen=samples_max)

    def take(self, sample: Sample, terms: Terms) -> list[Change]:
        """One more sample: the alarms that it begins or ends under these terms."""
        samples = self._samples
        samples.append(sample)
        while len(samples) > 2 and sample.at_s - samples[1].at_s >= window_s:
            samples.popleft()
        is_whole = sample.at_s - samples[0].at_s >= window_s
        self.usage = usage_between(samples[0], sample, is_whole)
        changes = []
        for resource, used in self.usage.items():
            limit = terms.limits[resource]
            if used is None:
                continue
            is_raised = resource in self.raised
            now = Change(resource, True, used, limit)
            if used >= terms.alarm_share * limit or (
                is_raised and used >= terms.over_share * limit
            ):
                self.raised[resource] = now
                if not is_raised:
                    changes.append(now)
            elif is_raised:
                del self.raised[resource]
                changes.append(Change(resource, False, used, limit))
        return changes

    def texts(self) -> list[str]:
        """Each alarm in words: limit, received, remedy."""
        return [text_of(change) for change in self.raised.values()]


def text_of(change: Change) -> str:
    """One alarm in words."""
    unit = UNITS[change.resource]
    return (
        f"{change.resource}: {change.used:,.4g} {unit} used, {change.limit_name} is"
        f" {change.limit:,.6g}; {change.remedy}"
    )


def _rate(before: float | None, after: float | None, passed_s: float) -> float | None:
    if before is None or after is None or passed_s <= 0.0:
        return None
    return max(0.0, after - before) / passed_s


def _storage_mib(sample: Sample) -> float | None:
    return None if sample.storage_bytes is None else sample.storage_bytes / _mib


def _socket_mib(sample: Sample) -> float | None:
    """What calls moved less what storage did: the services read and write sockets, and files that
    are in memory anyway count as well."""
    if sample.storage_bytes is None or sample.call_bytes is None:
        return None
    return max(0, sample.call_bytes - sample.storage_bytes) / _mib
