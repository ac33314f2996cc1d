"""The rules of what processes may use."""

from typing import Any

import pytest

from contracts.policies import Policy, PolicySet
from services.control_plane.candidate import Surroundings
from services.control_plane.rules import violations
from tests.unit.services.control_plane.test_rules import EMPTY, HOME, policy, put

assert isinstance(HOME, Surroundings)


def sla(service: str = "model_runtime", name: str = "*", **spec: Any) -> Policy:
    """An `sla` policy with terms for one service."""
    return policy("sla", name, {"infrastructure": {service: spec}})


GOOD = (
    sla(memory_mib_max=512, memory_reaction="unload"),
    sla("orchestrator", cpu_cores_max=1.5, shed_classes=["2", "3"]),
    sla("data_fabric", memory_reaction="alarm", shed_classes=[]),
    policy("priority", "*", {"cpu_weights": {"1": 100, "2": 100, "3": 1}}),
    policy("priority", "*", {}),
)
REFUSED: dict[str, tuple[Policy, list[str]]] = {
    "it stands where it is not read": (
        sla(name="tiny", memory_mib_max=512), ["sla * alone", "model_runtime in sla tiny", "move"],
    ),
    "an alarm that flutters": (
        sla(alarm_share=0.8, over_share=0.8), ["sla * infrastructure model_runtime", "0.8 and 0.8"],
    ),
    "what is not carried out": (
        sla(memory_reaction="scale"), ["alarm, shed or unload", "scale, which is not carried out"],
    ),
    "who holds no models": (
        sla("orchestrator", memory_reaction="unload"), ["only the model_runtime unloads", "orch"],
    ),
    "nobody is shed": (
        sla("orchestrator", memory_reaction="shed", shed_classes=[]), ["shed_classes names"],
    ),
    "a class without a CPU weight": (
        policy("priority", "*", {"cpu_weights": {"1": 100, "3": 1}}), ["or nothing", "{'1': 100"],
    ),
    "a higher risk with less CPU": (
        policy("priority", "*", {"cpu_weights": {"1": 1, "2": 2, "3": 1}}), ["a higher risk no"],
    ),
}  # fmt: skip


def broken(after: PolicySet) -> list[str]:
    """What the rules say."""
    return [str(violation) for violation in violations(EMPTY, after, HOME)]


@pytest.mark.parametrize("good", GOOD)
def test_terms_that_can_be_kept_pass(good: Policy) -> None:
    """Absent fields, too."""
    assert broken(put(good)) == []


@pytest.mark.parametrize("case", REFUSED)
def test_terms_that_cannot_be_kept_are_refused_at_commit(case: str) -> None:
    """With the rule, what was received and the remedy."""
    refused, words = REFUSED[case]
    found = broken(put(refused))
    assert len(found) == 1
    assert all(word in found[0] for word in words)
