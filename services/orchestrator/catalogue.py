"""The answer of `models`: every published version as the orchestrator sees it."""

from typing import Literal

from contracts.errors import MeshError
from contracts.inference import ModelRow, Models
from contracts.lineage import NOTHING
from services.orchestrator.plan import ModelPlan
from services.orchestrator.replicas import Replicas
from services.orchestrator.routing import PlanOf, RouteTable

State = Literal["published", "loading", "ready", "failed"]


def catalogue(table: RouteTable, plan_of: PlanOf, replicas: Replicas) -> Models:
    """Every published version, by name and number; one whose pack cannot be read has failed."""
    rows = []
    for name, versions in sorted(table.published.items()):
        aliases = table.routes[name].aliases if name in table.routes else {}
        for version, digest in sorted(versions.items(), key=lambda item: int(item[0])):
            plan = _plan_or_none(plan_of, name, version, digest)
            key = (name, version, digest)
            rows.append(
                ModelRow(
                    name=name,
                    version=version,
                    aliases=sorted(alias for alias, to in aliases.items() if to == version),
                    task="unknown" if plan is None else plan.task,
                    state="failed" if plan is None else _state(key, replicas),
                    digest=digest,
                    contract=NOTHING if plan is None else plan.contract,
                    replicas=replicas.ready_count(key),
                )
            )
    return Models(models=rows)


def _plan_or_none(plan_of: PlanOf, name: str, version: str, digest: str) -> ModelPlan | None:
    try:
        return plan_of(name, version, digest)
    except MeshError:
        return None


def _state(key: tuple[str, str, str], replicas: Replicas) -> State:
    """The best that any replica says."""
    if replicas.ready_count(key):
        return "ready"
    states = replicas.states(key)
    if "loading" in states:
        return "loading"
    return "failed" if "failed" in states else "published"
