"""Replicas that take batches of one risk class only, as the priority policy says. Pure.

Of the replicas that have a version ready, in order, the last ones are reserved; at least one always
stays for everybody, so that a replica that is away takes its reserve with it and not the service.
A class with a reserve leaves the shared replicas to the others until more than a batch for each of
its own waits: a class that is served at once would only queue behind the others' batches there.
"""

from collections.abc import Mapping, Sequence

from services.orchestrator.fairness import RiskClass
from services.orchestrator.replica import Replica
from shared.reservations import SHARED, reservations_of, roles

__all__ = ["SHARED", "reservations_of", "share_out", "sharing"]


def share_out(
    replicas: Sequence[Replica], reservations: Mapping[int, int]
) -> dict[int, Sequence[Replica]]:
    """Who takes what, SHARED included."""
    given = roles(len(replicas), reservations)
    return {
        role: [replica for replica, its in zip(replicas, given, strict=True) if its == role]
        for role in (SHARED, *set(given) - {SHARED})
    }


def sharing(
    classes: Sequence[RiskClass], given: Mapping[int, Sequence[Replica]], rows_max: int
) -> list[RiskClass]:
    """The classes with something waiting that the shared replicas may take now."""
    return [
        each
        for each in classes
        if each.rows and each.rows > rows_max * len(given.get(each.risk_level, ()))
    ]
