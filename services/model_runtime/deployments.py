"""Which versions a runtime has to hold, read from a policy set. Pure."""

from contracts.policies import (
    DeploymentPolicy,
    ModelPolicy,
    PolicySet,
    RoutePolicy,
    RulePolicy,
    SplitPolicy,
)
from contracts.types import UNSET
from services.model_runtime.generations import Key


def routed_versions(policies: PolicySet) -> frozenset[Key]:
    """Every (model, version) that a request without an explicit version may reach: by a route or
    alias, a split or its shadow, a rule, or as a fallback."""
    keys: set[Key] = set()
    for policy in policies.policies:
        match policy:
            case RoutePolicy(name=name, spec=route):
                keys |= {(name, version) for version in (route.default, *route.aliases.values())}
                fallback = route.fallback
                if fallback is not UNSET and fallback.version is not UNSET:
                    keys.add((fallback.model_name, fallback.version))
            case SplitPolicy(name=name, spec=split):
                keys |= {(name, version) for version in split.shares}
                if split.shadow is not UNSET:
                    keys.add((name, split.shadow.version))
            case RulePolicy(spec=rule) if rule.then.version is not UNSET:
                keys.add((rule.model_name, rule.then.version))
            case _:
                pass
    return frozenset(keys)


def wanted_versions(policies: PolicySet, index: int) -> dict[Key, str]:
    """(model, version) → pack digest of every version deployed on the runtime of this index.

    Raises ValueError naming a deployed version that no `model` policy publishes.
    """
    published = {
        (policy.name, version.version): version.digest
        for policy in policies.policies
        if isinstance(policy, ModelPolicy)
        for version in policy.spec.versions
    }
    wanted: dict[Key, str] = {}
    for policy in policies.policies:
        if not isinstance(policy, DeploymentPolicy):
            continue
        for deployed in policy.spec.versions:
            key = (policy.name, deployed.version)
            if key not in published:
                raise ValueError(f"deployment {key[0]} names version {key[1]}, never published")
            if index < deployed.replicas:
                wanted[key] = published[key]
    return wanted
