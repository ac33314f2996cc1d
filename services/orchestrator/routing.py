"""Which version answers a request: one immutable table per policy set, pinned by each request.

Order: an explicit version or alias, else the first rule that names one, else the model's split,
else the route's default. A default,
alias or split without a ready replica, or whose breaker is open, gives way to the declared fallback
if that one is ready and its own breaker lets the request through; a fallback has no fallback.
"""

import re
from collections.abc import Callable, Container
from typing import Final, NamedTuple, Protocol

from contracts.errors import MeshError
from contracts.inference import InferenceRequest, Variant
from contracts.policies import (
    DeploymentPolicy,
    ModelPolicy,
    Policy,
    PolicySet,
    RolloutPolicy,
    RoutePolicy,
    RouteSpec,
    RulePolicy,
    SplitPolicy,
)
from contracts.types import NAME_PATTERN, UNSET
from services.orchestrator.breakers import Breakers
from services.orchestrator.plan import Key, ModelPlan
from services.orchestrator.rules import Rules, compile_rules
from services.orchestrator.split import Split

_UNSET: Final = UNSET
_NAME: Final = re.compile(NAME_PATTERN)
PlanOf = Callable[[str, str, str], ModelPlan]
"""(model, version, digest) → its plan; raises PACK_INVALID."""
retry_after_ms = 250
"""Hint for a version that is loading; half the time of a report."""


class Readiness(Protocol):
    """What the replicas say of a version."""

    @property
    def ready(self) -> Container[Key]:
        """Versions that a replica takes now."""

    def is_expected(self, plan: ModelPlan) -> bool:
        """A replica had it a moment ago and is coming back."""


class Choice(NamedTuple):
    """The version that answers, and why it; the risk level that a rule names, 0 if none does; the
    version that gets a copy."""

    plan: ModelPlan
    variant: Variant
    risk_level: int = 0
    shadow: ModelPlan | None = None


class RouteTable:
    """Everything that one policy set says about which version answers; never changes.

    `plans` has the deployed versions of each model; `faults` those that could not be compiled.
    """

    def __init__(self, policies: PolicySet, plan_of: PlanOf) -> None:
        self.version = policies.version
        self.digest = policies.digest()
        self.published: dict[str, dict[str, str]] = {}
        self.routes: dict[str, RouteSpec] = {}
        self.plans: dict[str, dict[str, ModelPlan]] = {}
        self.faults: list[str] = []
        self._splits: dict[str, Split] = {}
        deployed: dict[str, list[str]] = {}
        rules: list[RulePolicy] = []
        for policy in policies.policies:
            match policy:
                case ModelPolicy(name=name, spec=spec):
                    self.published[name] = {row.version: row.digest for row in spec.versions}
                case DeploymentPolicy(name=name, spec=spec):
                    deployed[name] = [row.version for row in spec.versions]
                case RoutePolicy(name=name, spec=spec):
                    self.routes[name] = spec
                case SplitPolicy(name=name, spec=spec):
                    self._splits[name] = Split.of(spec)
                case RulePolicy():
                    rules.append(policy)
                case _:
                    pass
        for name, versions in deployed.items():
            self.plans[name] = self._compile(name, versions, plan_of)
        self._shadows = self._compile_shadows()
        self._rules: dict[str, Rules]
        self._rules, faults = compile_rules(rules)
        self.faults += faults
        self._defaults = {
            name: Choice(self.plans[name][route.default], "default")
            for name, route in self.routes.items()
            if name not in self._splits
            and name not in self._rules
            and route.default in self.plans.get(name, {})
        }

    def _compile(self, name: str, versions: list[str], plan_of: PlanOf) -> dict[str, ModelPlan]:
        plans = {}
        for version in versions:
            digest = self.published.get(name, {}).get(version)
            if digest is None:
                self.faults.append(f"{name} {version} is deployed but not published")
                continue
            try:
                plans[version] = plan_of(name, version, digest)
            except MeshError as error:
                self.faults.append(f"{name} {version}: {error.message}")
        return plans

    def _compile_shadows(self) -> dict[str, ModelPlan]:
        """The shadow of each model that has one. It gets the requests of the other versions as
        they are, so that it must take the same; what does not is a fault."""
        shadows = {}
        for name, split in self._splits.items():
            plans = self.plans.get(name, {})
            shadow = plans.get(split.shadow)
            if shadow is None:
                continue
            shadows[name] = shadow
            for version in split.versions:
                plan = plans.get(version)
                if plan is not None and not plan.takes_the_same_as(shadow):
                    self.faults.append(
                        f"split {name}: the shadow {shadow.version} takes other inputs than"
                        f" {version}, whose requests it would get"
                    )
        return shadows

    def choose(
        self, body: InferenceRequest, trace_id: str, replicas: Readiness, breakers: Breakers
    ) -> Choice:
        """The version for this request. Raises MODEL_UNKNOWN for a model, version or alias that
        does not exist, MODEL_NOT_READY when no replica has the version ready or its breaker does
        not let the request through, RULE_REFUSED."""
        if body.model_version is _UNSET:
            default = self._defaults.get(body.model_name)
            if (
                default is not None
                and default.plan.key in replicas.ready
                and default.plan.key not in breakers.shut
            ):
                return default
        ruled, risk_level = "", 0
        if body.model_name in self._rules:
            ruled, risk_level = self._rules[body.model_name].decide(body)
        version, variant, has_copy = self._version(body, trace_id, ruled)
        plan = self.plans.get(body.model_name, {}).get(version)
        is_ready = plan is not None and plan.key in replicas.ready
        if is_ready and plan is not None and breakers.admits(plan):
            shadow = self._shadows.get(body.model_name) if has_copy else None
            return Choice(plan, variant, risk_level, shadow)
        fallback = None if variant == "pinned" else self._fallback(body.model_name)
        if fallback is not None and fallback.key in replicas.ready and breakers.admits(fallback):
            breakers.fell_back(body.model_name, fallback)
            return Choice(fallback, "fallback", risk_level)
        if plan is not None and plan.key in breakers.shut:
            raise breakers.refusal(plan)
        if plan is not None and replicas.is_expected(plan):
            return Choice(plan, variant, risk_level)
        state = "is not deployed" if plan is None else "is not ready on any replica"
        raise _not_ready(f"{body.model_name} {version} {state}")

    def _version(
        self, body: InferenceRequest, trace_id: str, ruled: str
    ) -> tuple[str, Variant, bool]:
        """The version, why, and whether a copy goes to the model's shadow."""
        name, asked = body.model_name, body.model_version
        published = self.published.get(name)
        if published is None:
            if _NAME.search(name) is None:
                text = f"infer: model_name does not match {NAME_PATTERN}"
                raise MeshError("INVALID_REQUEST", text)
            raise MeshError("MODEL_UNKNOWN", f"no model {name} in policy version {self.version}")
        route = self.routes.get(name)
        if asked is not UNSET:
            if asked in published:
                return asked, "pinned", False
            if route is not None and asked in route.aliases:
                return route.aliases[asked], "alias", False
            raise MeshError("MODEL_UNKNOWN", f"{name} has no version or alias {asked}")
        if route is None:
            raise MeshError(
                "MODEL_NOT_READY", f"{name} has no route", retry_after_ms=retry_after_ms
            )
        if ruled:
            return ruled, "rule", False
        split = self._splits.get(name)
        if split is not None:
            version, has_copy = split.choose(split.key_of(body, trace_id))
            return version, "split", has_copy
        return route.default, "default", False

    def _fallback(self, name: str) -> ModelPlan | None:
        declared = self.routes[name].fallback if name in self.routes else UNSET
        if declared is UNSET:
            return None
        other = declared.model_name
        version = declared.version
        if version is UNSET:
            if other not in self.routes:
                return None
            version = self.routes[other].default
        return self.plans.get(other, {}).get(version)

    def routed(self) -> list[ModelPlan]:
        """The versions that requests without an explicit version may reach, fallbacks apart."""
        reached = []
        for name, route in self.routes.items():
            split = self._splits.get(name)
            versions = {route.default, *route.aliases.values(), *(split.versions if split else ())}
            plans = self.plans.get(name, {})
            reached += [plans[version] for version in sorted(versions) if version in plans]
        return reached


def _not_ready(message: str) -> MeshError:
    return MeshError("MODEL_NOT_READY", message, retry_after_ms=retry_after_ms)


def unsupported(policy: Policy) -> str | None:
    """Why this process cannot do what a policy says, or None: what is not enforced is refused,
    never ignored."""
    if isinstance(policy, RolloutPolicy):
        return f"rollout {policy.name}: steps are not taken yet; move the shares of a split"
    return None
