"""Rules of traffic: splits, rules, rollouts, limits, weights. Pure; one rule, one function."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from contracts.policies import (
    SLOTS,
    BatchingPolicy,
    LimitsPolicy,
    PriorityPolicy,
    RiskKey,
    RolloutPolicy,
    RoutePolicy,
    RulePolicy,
    SlaPolicy,
    SplitPolicy,
)
from contracts.types import UNSET
from services.control_plane.candidate import Candidate, Violation, name_of, versions_of
from shared.rules_grammar import parse
from shared.rules_tree import RuleFault, rules_fault

refusal_characters_max = 1_024
_RISKS: tuple[RiskKey, ...] = ("1", "2", "3")


def splits_are_whole(candidate: Candidate) -> Iterator[Violation]:
    """The slots of a split sum to SLOTS, and go to deployed versions."""
    for policy in candidate.each(SplitPolicy):
        total = sum(policy.spec.shares.values())
        if total != SLOTS:
            yield Violation(
                name_of(policy),
                f"the shares' slots sum to {SLOTS:,}",
                f"{total:,}",
                f"{'add' if total < SLOTS else 'take away'} {abs(SLOTS - total):,} slots",
            )
        named = list(policy.spec.shares)
        if policy.spec.shadow is not UNSET:
            named.append(policy.spec.shadow.version)
        for version in named:
            if not candidate.is_deployed(policy.name, version):
                yield Violation(
                    name_of(policy),
                    "a split names deployed versions",
                    f"version {version}; deployed are {candidate.deployed_text(policy.name)}",
                    "deploy it first",
                )


def routes_stay_while_traffic_is_divided(candidate: Candidate) -> Iterator[Violation]:
    """A route is not removed from under a split or a rule: requests would find no version."""
    for before in candidate.before.policies:
        if not isinstance(before, RoutePolicy) or before.name in candidate.routes:
            continue
        model = before.name
        needing = [name_of(one) for one in candidate.each(SplitPolicy) if one.name == model]
        needing += [
            name_of(one) for one in candidate.each(RulePolicy) if one.spec.model_name == model
        ]
        if needing:
            yield Violation(
                name_of(before),
                "a model with a split or a rule has a route",
                f"its removal, while in force are {', '.join(needing)}",
                f"remove {' and '.join(needing)} first, or in the same commit",
            )


def rules_do_one_thing(candidate: Candidate) -> Iterator[Violation]:
    """A rule names a published model and does exactly one of three things."""
    for policy in candidate.each(RulePolicy):
        spec = policy.spec
        if not versions_of(candidate.after, spec.model_name):
            yield Violation(
                name_of(policy),
                "model_name is a published model",
                spec.model_name,
                "publish a pack of this model first",
            )
        given = [
            name
            for name in ("version", "risk_level", "refuse")
            if getattr(spec.then, name) is not UNSET
        ]
        if len(given) != 1:
            yield Violation(
                name_of(policy),
                "`then` does exactly one of version, risk_level, refuse",
                ", ".join(given) or "none",
                "write one rule for each",
            )
        version = spec.then.version
        if version is not UNSET and not candidate.is_deployed(spec.model_name, version):
            yield Violation(
                name_of(policy),
                "a rule names a deployed version",
                f"version {version}; deployed are {candidate.deployed_text(spec.model_name)}",
                "deploy it first",
            )


def rules_can_be_read(candidate: Candidate) -> Iterator[Violation]:
    """A rule's expression follows the grammar, and those of a model are not too many together."""
    rules: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    for policy in candidate.each(RulePolicy):
        spec = policy.spec
        try:
            nodes[spec.model_name] += parse(spec.when).nodes
        except RuleFault as fault:
            yield Violation(
                name_of(policy),
                "`when` is an expression over the request",
                f"{spec.when[: fault.position + 20][-60:]!r}, {fault}",
                "docs/rules.md has the grammar",
            )
        rules[spec.model_name] += 1
        refuse = spec.then.refuse
        if refuse is not UNSET and not 1 <= len(refuse) <= refusal_characters_max:
            yield Violation(
                name_of(policy),
                f"`refuse` says why in 1 to {refusal_characters_max} characters",
                str(len(refuse)),
                "write one sentence",
            )
    for model in rules:
        fault_of_model = rules_fault(rules[model], nodes[model])
        if fault_of_model is not None:
            yield Violation(
                f"rules of {model}",
                fault_of_model.partition(",")[0],
                fault_of_model.rpartition(" ")[2],
                "join rules or make them simpler",
            )


def rollouts_climb(candidate: Candidate) -> Iterator[Violation]:
    """A rollout's version is deployed and its steps rise to 100 per cent."""
    for policy in candidate.each(RolloutPolicy):
        steps = policy.spec.steps
        if not steps or steps[-1] != 100 or any(b <= a for a, b in pairwise(steps)):
            yield Violation(
                name_of(policy),
                "steps rise and end at 100",
                ", ".join(map(str, steps)) or "none",
                "for example 1, 10, 30, 50, 100",
            )
        if not candidate.is_deployed(policy.name, policy.spec.version):
            yield Violation(
                name_of(policy),
                "a rollout names a deployed version",
                f"version {policy.spec.version}; deployed are"
                f" {candidate.deployed_text(policy.name)}",
                "deploy it first",
            )


def weights_follow_risk(candidate: Candidate) -> Iterator[Violation]:
    """Every risk class has a weight, a higher risk no lower one, and reservations fit."""
    replicas = candidate.surroundings.replicas
    for policy in candidate.each(PriorityPolicy):
        known = [policy.spec.weights[risk] for risk in _RISKS if risk in policy.spec.weights]
        if len(known) != len(_RISKS) or any(b > a for a, b in pairwise(known)):
            yield Violation(
                name_of(policy),
                'weights has "1", "2" and "3", and a higher risk weighs no less',
                str(dict(policy.spec.weights)),
                'for example {"1": 100, "2": 50, "3": 10}',
            )
        reserved = sum(policy.spec.reserved_replicas.values())
        if reserved >= replicas and reserved:
            yield Violation(
                name_of(policy),
                "reserved replicas leave at least one for everybody",
                f"{reserved} reserved, [runtime] replicas of mortise.toml is {replicas}",
                f"reserve at most {replicas - 1}, or raise [runtime] replicas and restart the mesh"
                f" (what `mortise replicas` adds is not counted)",
            )


def batches_fit(candidate: Candidate) -> Iterator[Violation]:
    """A request that is split off is not larger than a batch."""
    for policy in candidate.each(BatchingPolicy):
        if policy.spec.tokens_split > policy.spec.tokens_max:
            yield Violation(
                name_of(policy),
                "tokens_split is at most tokens_max",
                f"{policy.spec.tokens_split} and {policy.spec.tokens_max}",
                "lower tokens_split or raise tokens_max",
            )


def bursts_need_a_rate(candidate: Candidate) -> Iterator[Violation]:
    """A burst means something only beside a rate."""
    for policy in candidate.each(LimitsPolicy):
        if policy.spec.burst is not UNSET and policy.spec.requests_per_s is UNSET:
            yield Violation(
                name_of(policy),
                "burst stands beside requests_per_s",
                f"burst {policy.spec.burst} alone",
                "add requests_per_s",
            )


def stages_fit_the_whole(candidate: Candidate) -> Iterator[Violation]:
    """The stages' budgets sum to no more than the promise."""
    for policy in candidate.each(SlaPolicy):
        total = sum(policy.spec.stages.values())
        if total > policy.spec.p99_ms:
            yield Violation(
                name_of(policy),
                "the stages' budgets sum to at most p99_ms",
                f"{total:g} ms in stages, p99_ms is {policy.spec.p99_ms:g}",
                "lower a stage or raise p99_ms",
            )
