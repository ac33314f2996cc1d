"""What apply, publish, promote and rollback change in the policy set. Pure."""

import msgspec

from contracts.control import Diverting
from contracts.errors import MeshError
from contracts.policies import (
    SLOTS,
    DeployedVersion,
    DeploymentPolicy,
    DeploymentSpec,
    ModelPolicy,
    ModelSpec,
    Policy,
    PolicySet,
    PublishedVersion,
    RolloutPolicy,
    RoutePolicy,
    RouteSpec,
    RulePolicy,
    SplitPolicy,
)
from contracts.types import UNSET
from services.control_plane.candidate import versions_of
from services.control_plane.chain import Key, key_of
from services.control_plane.changes import Change


def version_of(policies: PolicySet, model: str, digest: str) -> str | None:
    """The version that a pack has been published as."""
    return next((row.version for row in versions_of(policies, model) if row.digest == digest), None)


def publish(policies: PolicySet, model: str, digest: str) -> ModelPolicy:
    """The model with the pack as its next version."""
    rows = versions_of(policies, model)
    version = str(int(rows[-1].version) + 1) if rows else "1"
    rows.append(PublishedVersion(version=version, digest=digest))
    return ModelPolicy(name=model, spec=ModelSpec(versions=rows))


def published_digest(policies: PolicySet, model: str, version: str) -> str:
    """The pack of a published version. Raises MODEL_UNKNOWN naming what there is."""
    rows = versions_of(policies, model)
    for row in rows:
        if row.version == version:
            return row.digest
    known = ", ".join(row.version for row in rows)
    raise MeshError(
        "MODEL_UNKNOWN",
        f"version {version} of {model} is not published; published are {known or 'none'}",
    )


def deployment_of(policies: PolicySet, model: str) -> DeploymentPolicy | None:
    """The model's deployment."""
    policy = policies.find("deployment", model)
    return policy if isinstance(policy, DeploymentPolicy) else None


def route_of(policies: PolicySet, model: str) -> RoutePolicy | None:
    """The model's route."""
    policy = policies.find("route", model)
    return policy if isinstance(policy, RoutePolicy) else None


def deployed_row(policies: PolicySet, model: str, version: str) -> DeployedVersion | None:
    """How a version is deployed."""
    deployment = deployment_of(policies, model)
    rows = deployment.spec.versions if deployment is not None else []
    return next((row for row in rows if row.version == version), None)


def deploy(policies: PolicySet, model: str, version: str) -> DeploymentPolicy | None:
    """The deployment with this version in it; None when it is there already.

    It gets as many replicas as the version that answers now. Versions that nothing names any more
    go, so that the version before the last promotion stays loaded for a rollback, and no older
    one.
    """
    if deployed_row(policies, model, version) is not None:
        return None
    deployment, route = deployment_of(policies, model), route_of(policies, model)
    rows = deployment.spec.versions if deployment is not None else []
    named = named_versions(policies, model)
    kept = [row for row in rows if row.version in named]
    serving = None if route is None else deployed_row(policies, model, route.spec.default)
    new = DeployedVersion(version=version, replicas=1 if serving is None else serving.replicas)
    return DeploymentPolicy(name=model, spec=DeploymentSpec(versions=[*kept, new]))


def named_versions(policies: PolicySet, model: str) -> set[str]:
    """The versions of a model that any traffic policy names."""
    named: set[str] = set()
    for policy in policies.policies:
        if isinstance(policy, RoutePolicy):
            if policy.name == model:
                named |= {policy.spec.default, *policy.spec.aliases.values()}
            fallback = policy.spec.fallback
            if fallback is not UNSET and fallback.model_name == model:
                named |= set() if fallback.version is UNSET else {fallback.version}
        elif isinstance(policy, SplitPolicy) and policy.name == model:
            shadow = policy.spec.shadow
            named |= policy.spec.shares.keys() | (set() if shadow is UNSET else {shadow.version})
        elif isinstance(policy, RulePolicy) and policy.spec.model_name == model:
            version = policy.spec.then.version
            named |= set() if version is UNSET else {version}
        elif isinstance(policy, RolloutPolicy) and policy.name == model:
            named.add(policy.spec.version)
    return named


def diverting(policies: PolicySet, model: str, version: str) -> list[Diverting]:
    """The split and the rules that send requests of a model to other versions than this one."""
    found = []
    for policy in policies.policies:
        if isinstance(policy, SplitPolicy) and policy.name == model:
            others = {
                other: slots
                for other, slots in policy.spec.shares.items()
                if other != version and slots
            }
            shares = ", ".join(
                f"{slots * 100 / SLOTS:.6g} % to version {other}"
                for other, slots in sorted(others.items(), key=lambda one: int(one[0]))
            )
            if others:
                found.append(Diverting(kind="split", name=policy.name, detail=shares))
        elif isinstance(policy, RulePolicy) and policy.spec.model_name == model:
            then = policy.spec.then.version
            if then is not UNSET and then != version:
                detail = f"to version {then} when {policy.spec.when}"
                found.append(Diverting(kind="rule", name=policy.name, detail=detail))
    return found


def route_to(policies: PolicySet, model: str, version: str) -> RoutePolicy | None:
    """The route with this default, else as it is; None when it leads there already."""
    route = route_of(policies, model)
    if route is None:
        return RoutePolicy(name=model, spec=RouteSpec(default=version))
    if route.spec.default == version:
        return None
    return RoutePolicy(name=model, spec=msgspec.structs.replace(route.spec, default=version))


def alias_to(policies: PolicySet, model: str, alias: str, version: str) -> RoutePolicy | None:
    """The route with this alias; None when it names the version already. Raises POLICY_INVALID."""
    route = route_of(policies, model)
    if route is None:
        raise MeshError(
            "POLICY_INVALID",
            f"route {model}: an alias stands in a route; received {alias} = {version} and there is"
            f" no route yet; promote a version first with: mortise promote {model} {version}",
        )
    if route.spec.aliases.get(alias) == version:
        return None
    aliases = {**route.spec.aliases, alias: version}
    return RoutePolicy(name=model, spec=msgspec.structs.replace(route.spec, aliases=aliases))


def put_in_and_out(before: PolicySet, put: list[Policy], removed: list[Key]) -> Change | None:
    """What `apply` changes; None when all is in force already. Raises POLICY_INVALID naming a
    policy that is to be removed and is not in force, is named twice, or is put in as well."""
    in_force = {key_of(policy): policy for policy in before.policies}
    put_keys = {key_of(policy) for policy in put}
    for place, (kind, name) in enumerate(removed):
        if (kind, name) in put_keys or (kind, name) in removed[:place]:
            raise MeshError(
                "POLICY_INVALID",
                f"{kind} {name}: a commit names a policy once; received it in remove and"
                f" {'in policies' if (kind, name) in put_keys else 'again in remove'};"
                " leave one of them out",
            )
        if (kind, name) not in in_force:
            same = ", ".join(sorted(other for one, other in in_force if one == kind)) or "none"
            raise MeshError(
                "POLICY_INVALID",
                f"{kind} {name}: only a policy in force can be removed; received {kind} {name},"
                f" in force of this kind: {same}; look at: mortise policies",
            )
    is_same = all(in_force.get(key_of(policy)) == policy for policy in put)
    return None if is_same and not removed else Change(put, removed)


def restore(now: PolicySet, then: PolicySet) -> tuple[list[Policy], list[Key]]:
    """What to change and remove so that `then` is in force again. Published versions stay: they
    only grow."""
    table = {key_of(policy): policy for policy in now.policies}
    changed: list[Policy] = [
        policy
        for policy in then.policies
        if not isinstance(policy, ModelPolicy) and table.get(key_of(policy)) != policy
    ]
    kept = {key_of(policy) for policy in then.policies}
    removed = [
        key
        for key, policy in table.items()
        if key not in kept and not isinstance(policy, ModelPolicy)
    ]
    return changed, removed


def routed_versions(policies: PolicySet) -> set[tuple[str, str]]:
    """(model, version) of everything that traffic can reach."""
    models = {policy.name for policy in policies.policies if isinstance(policy, ModelPolicy)}
    return {(model, version) for model in models for version in named_versions(policies, model)}
