"""Which of the replicas that serve a version are reserved for a risk class. Pure.

The last ones are, the highest class getting its reserve first; at least one always stays for
everybody, so that a replica that is away takes its reserve with it and not the service.
"""

from collections.abc import Mapping

from contracts.policies import PrioritySpec

SHARED = 0
"""The role of the replicas that every class uses; the others are risk levels."""


def reservations_of(spec: PrioritySpec) -> dict[int, int]:
    """Replicas by risk level, where there are any."""
    return {int(risk): count for risk, count in spec.reserved_replicas.items() if count}


def roles(count: int, reservations: Mapping[int, int]) -> list[int]:
    """The role of each of so many replicas, in their order."""
    found: list[int] = []
    left = count
    for risk in sorted(reservations):
        reserved = max(0, min(reservations[risk], left - 1))
        found = [risk] * reserved + found
        left -= reserved
    return [SHARED] * left + found
