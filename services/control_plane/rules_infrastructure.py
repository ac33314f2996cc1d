"""Rules of what processes may use: the infrastructure contract and CPU weights. Pure."""

from collections.abc import Iterator
from itertools import pairwise

from contracts.policies import (
    InfrastructureSpec,
    PriorityPolicy,
    RiskKey,
    ServiceName,
    SlaPolicy,
)
from contracts.types import UNSET
from services.control_plane.candidate import Candidate, Violation, name_of

EVERY = "*"
_RISKS: tuple[RiskKey, ...] = ("1", "2", "3")


def infrastructure_can_be_kept(candidate: Candidate) -> Iterator[Violation]:
    """It stands in the policy of everybody, an alarm ends below where it begins, and the reaction
    is one that its service can take."""
    for policy in candidate.each(SlaPolicy):
        if policy.spec.infrastructure and policy.name != EVERY:
            yield Violation(
                name_of(policy),
                f"infrastructure stands in the policy sla {EVERY} alone",
                f"{', '.join(policy.spec.infrastructure)} in {name_of(policy)}",
                "processes serve every model: move it there",
            )
        for service, spec in policy.spec.infrastructure.items():
            yield from _of_service(f"{name_of(policy)} infrastructure {service}", service, spec)


def _of_service(name: str, service: ServiceName, spec: InfrastructureSpec) -> Iterator[Violation]:
    if spec.over_share >= spec.alarm_share:
        yield Violation(
            name,
            "over_share is less than alarm_share",
            f"{spec.over_share:g} and {spec.alarm_share:g}",
            "leave a distance between them, so that an alarm does not flutter",
        )
    if spec.memory_reaction == "scale":
        yield Violation(
            name,
            "memory_reaction is alarm, shed or unload",
            "scale, which is not carried out: one more process on the same machine takes memory"
            " and gives none back",
            "shed or unload, deploy fewer versions, or declare more memory",
        )
    if spec.memory_reaction == "unload" and service != "model_runtime":
        yield Violation(
            name, "only the model_runtime unloads", f"unload for {service}", "shed or alarm"
        )
    if spec.memory_reaction in ("shed", UNSET) and not spec.shed_classes:
        yield Violation(
            name,
            "shed_classes names whom shedding refuses",
            "no class",
            'for example ["3"], or memory_reaction "alarm"',
        )


def cpu_weights_follow_risk(candidate: Candidate) -> Iterator[Violation]:
    """CPU weights are there for every risk class or for none, and a higher risk has no less."""
    for policy in candidate.each(PriorityPolicy):
        weights = policy.spec.cpu_weights
        known = [weights[risk] for risk in _RISKS if risk in weights]
        if known and (len(known) != len(_RISKS) or any(b > a for a, b in pairwise(known))):
            yield Violation(
                name_of(policy),
                'cpu_weights has "1", "2" and "3" or nothing, and a higher risk no less',
                str(dict(weights)),
                'for example {"1": 100, "2": 100, "3": 1}',
            )
