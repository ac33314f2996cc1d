"""Routing rules in a serving mesh: what a request is told, and what its receipt says."""

from typing import Any

from contracts.policies import RulePolicy, RuleSpec, Then
from tests.simulation.orchestrator_mesh import Mesh, failing, serving
from tests.unit.services.orchestrator.making import policy_set


def rule(name: str, when: str, **then: Any) -> RulePolicy:
    """A rule of `tiny`."""
    return RulePolicy(
        name=name, spec=RuleSpec(model_name="tiny", order=0, when=when, then=Then(**then))
    )


async def test_rules_route_raise_the_risk_and_refuse_without_a_restart() -> None:
    """The variant, the risk level that the runtime sees, and the named refusal."""
    async with serving(Mesh()) as mesh:
        assert (await mesh.infer(1.0, tenant_id="gold")).variant == "default"
        rules = (
            rule("gold", "tenant_id == 'gold' and parameters.tier > 1", version="1"),
            rule("large", "row_count > 2", risk_level=3),
            rule("gone", "entity starts_with 'X'", refuse="its contract ended"),
        )
        mesh.service.pipeline.activate(policy_set(*mesh.policies, *rules, version=2))
        answer = await mesh.infer(1.0, tenant_id="gold", parameters={"tier": 2})
        assert (answer.variant, answer.policy_version) == ("rule", 2)
        assert (await mesh.infer(1.0, rows=3, risk_level=1)).variant == "default"
        assert mesh.runtime.batches[-1].risk_levels == [3]
        with failing("RULE_REFUSED") as failed:
            await mesh.infer(1.0, entity="X1", model_version="1")
        assert failed.error.message == "rule gone refuses this request: its contract ended"
        await mesh.wait_for(lambda: len(mesh.control_plane.receipts) == 3, "the receipts")
        assert [(row.variant, row.risk_level) for row in mesh.control_plane.receipts] == [
            ("default", 2), ("rule", 2), ("default", 3),
        ]  # fmt: skip
        assert (await mesh.conserved())["infer_refused"] == 1
