"""The list of cross rules and the check that runs them all. Pure.

A rule looks at the whole set that would be in force, so that for example a changed deployment
cannot leave a route behind.
"""

from collections.abc import Callable, Iterator

from contracts.errors import MeshError
from contracts.limits import policy_set_max
from contracts.policies import Policy, PolicySet
from services.control_plane import rules_infrastructure, rules_traffic, rules_versions
from services.control_plane.candidate import Candidate, Surroundings, Violation, name_of

violations_max = 8
"""Violations that one refusal names; the rest are counted."""

RULES: tuple[Callable[[Candidate], Iterator[Violation]], ...] = (
    rules_versions.versions_only_grow,
    rules_versions.a_pack_has_one_version,
    rules_versions.packs_are_readable,
    rules_versions.the_model_is_published,
    rules_versions.deployments_name_published_versions,
    rules_versions.replicas_fit_the_home,
    rules_versions.routes_name_deployed_versions,
    rules_versions.fallbacks_end,
    rules_traffic.splits_are_whole,
    rules_traffic.routes_stay_while_traffic_is_divided,
    rules_traffic.rules_do_one_thing,
    rules_traffic.rules_can_be_read,
    rules_traffic.rollouts_climb,
    rules_traffic.weights_follow_risk,
    rules_traffic.batches_fit,
    rules_traffic.bursts_need_a_rate,
    rules_traffic.stages_fit_the_whole,
    rules_infrastructure.infrastructure_can_be_kept,
    rules_infrastructure.cpu_weights_follow_risk,
)


def violations(
    before: PolicySet, after: PolicySet, surroundings: Surroundings
) -> Iterator[Violation]:
    """Every broken rule of the set that would follow `before`."""
    if len(after.policies) > policy_set_max:
        yield Violation(
            "the policy set",
            f"a set holds at most {policy_set_max} policies",
            str(len(after.policies)),
            "remove policies that are not needed",
        )
        return
    candidate = Candidate(before, after, surroundings)
    for rule in RULES:
        yield from rule(candidate)


def check(before: PolicySet, after: PolicySet, surroundings: Surroundings) -> None:
    """Raise POLICY_INVALID naming each broken rule, what was received and the remedy."""
    found = list(violations(before, after, surroundings))
    if not found:
        return
    named = [str(violation) for violation in found[:violations_max]]
    if len(found) > violations_max:
        named.append(f"and {len(found) - violations_max} more")
    raise MeshError(
        "POLICY_INVALID",
        " | ".join(named),
        details={"policy": found[0].policy, "rule": found[0].rule, "violations": len(found)},
    )


def check_changes(changed: list[Policy]) -> None:
    """Raise POLICY_INVALID when one commit names a policy twice."""
    seen: set[str] = set()
    for policy in changed:
        name = name_of(policy)
        if name in seen:
            raise MeshError(
                "POLICY_INVALID",
                f"{name}: a commit names a policy once; received it twice; merge the two",
            )
        seen.add(name)
