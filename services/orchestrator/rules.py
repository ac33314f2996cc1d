"""The routing rules of each model, compiled once when their policies come into force.

Rules are looked at in their order: the first that names a version and the first that names a risk
level count, and one that refuses ends it. All of them see the request as it was sent.
"""

from collections.abc import Iterable, Sequence

from contracts.errors import MeshError
from contracts.inference import InferenceRequest
from contracts.policies import RulePolicy
from contracts.types import UNSET
from services.orchestrator.rules_compiler import Ruling, compile_rulings
from shared.rules_grammar import parse
from shared.rules_tree import RuleFault, rules_fault


class Rules:
    """The rules of one model, in order."""

    def __init__(self, rulings: Sequence[Ruling]) -> None:
        self._rulings = rulings
        self._decide = compile_rulings(rulings)

    def decide(self, body: InferenceRequest) -> tuple[str, int]:
        """The version ("": none) and the risk level (0: none) that rules name for a request.
        Raises RULE_REFUSED."""
        version, risk_level, refusing = self._decide(body)
        if refusing >= 0:
            ruling = self._rulings[refusing]
            raise MeshError(
                "RULE_REFUSED",
                f"rule {ruling.name} refuses this request: {ruling.refuse}",
                details={"rule": ruling.name},
            )
        return version, risk_level


def compile_rules(policies: Iterable[RulePolicy]) -> tuple[dict[str, Rules], list[str]]:
    """Each model's rules in the order of `order`, then name; and what is wrong with the rest."""
    by_model: dict[str, list[Ruling]] = {}
    nodes: dict[str, int] = {}
    faults = []
    for policy in sorted(policies, key=_order):
        spec, then = policy.spec, policy.spec.then
        try:
            rule = parse(spec.when)
        except RuleFault as fault:
            faults.append(f"rule {policy.name}: {fault}")
            continue
        rulings = by_model.setdefault(spec.model_name, [])
        nodes[spec.model_name] = nodes.get(spec.model_name, 0) + rule.nodes
        rulings.append(
            Ruling(
                policy.name,
                rule.condition,
                "" if then.version is UNSET else then.version,
                0 if then.risk_level is UNSET else then.risk_level,
                "" if then.refuse is UNSET else then.refuse,
            )
        )
    compiled = {}
    for model, rulings in by_model.items():
        fault_of_model = rules_fault(len(rulings), nodes[model])
        if fault_of_model is None:
            compiled[model] = Rules(rulings)
        else:
            faults.append(f"rules of {model}: {fault_of_model}")
    return compiled, faults


def _order(policy: RulePolicy) -> tuple[int, str]:
    return policy.spec.order, policy.name
