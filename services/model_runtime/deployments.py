"""Which versions a runtime has to hold, read from a policy set. Pure."""

from contracts.policies import DeploymentPolicy, ModelPolicy, PolicySet
from services.model_runtime.generations import Key


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
