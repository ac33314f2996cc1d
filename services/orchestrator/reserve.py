"""Replicas that take batches of one risk class only, as the priority policy says. Pure.

Of the replicas that have a version ready, in order, the last ones are reserved; at least one always
stays for everybody, so that a replica that is away takes its reserve with it and not the service.
A class with a reserve leaves the shared replicas to the others until more than a batch for each of
its own waits: a class that is served at once would only queue behind the others' batches there.
"""

from collections.abc import Mapping, Sequence

from contracts.policies import PrioritySpec
from services.orchestrator.fairness import RiskClass
from services.orchestrator.replica import Replica

SHARED = 0
"""The key of the replicas that every class uses; the others are risk levels."""


def reservations_of(spec: PrioritySpec) -> dict[int, int]:
    """Replicas by risk level, where there are any."""
    return {int(risk): count for risk, count in spec.reserved_replicas.items() if count}


def share_out(
    replicas: Sequence[Replica], reservations: Mapping[int, int]
) -> dict[int, Sequence[Replica]]:
    """Who takes what, SHARED included; the highest class is given its reserve first."""
    left = list(replicas)
    given: dict[int, Sequence[Replica]] = {}
    for risk in sorted(reservations):
        count = min(reservations[risk], len(left) - 1)
        if count > 0:
            given[risk] = left[-count:]
            left = left[:-count]
    given[SHARED] = left
    return given


def sharing(
    classes: Sequence[RiskClass], given: Mapping[int, Sequence[Replica]], rows_max: int
) -> list[RiskClass]:
    """The classes with something waiting that the shared replicas may take now."""
    return [
        each
        for each in classes
        if each.rows and each.rows > rows_max * len(given.get(each.risk_level, ()))
    ]
