"""What answers are made of, encoded once for each combination of version, features, policies and
infrastructure."""

from dataclasses import dataclass

import msgspec
from msgspec import Raw

from contracts.features import FeatureLineage
from contracts.lineage import (
    NOTHING,
    AiVersion,
    Combination,
    Lineage,
    data_digest,
    snapshot_digest,
)
from contracts.types import UNSET
from services.orchestrator.plan import ModelPlan
from services.orchestrator.routing import RouteTable

combinations_max = 1_024
"""Kept encoded; with more, all are made anew as they are needed."""

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True, eq=False)
class Combined:
    """A combination: its digest, the answer's `lineage` and the `Combination`, both encoded."""

    snapshot: str
    lineage: Raw
    combination: bytes


class Combinations:
    """Every combination that answered lately."""

    def __init__(self, infra: str) -> None:
        self._infra = infra
        self._known: dict[tuple[ModelPlan, RouteTable, FeatureLineage | None], Combined] = {}

    def of(self, plan: ModelPlan, table: RouteTable, features: FeatureLineage | None) -> Combined:
        """The combination of this version under these policies with these features."""
        key = (plan, table, features)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= combinations_max:
                self._known.clear()
            found = self._known[key] = combine(plan, table, features, self._infra)
        return found


def combine(
    plan: ModelPlan, table: RouteTable, features: FeatureLineage | None, infra: str
) -> Combined:
    """Encode a combination. `features` is what the fabric said, None for a model without a view."""
    version = AiVersion(
        data=NOTHING if features is None else data_digest(features.data, features.feature_code),
        model=plan.digest,
        infra=infra,
        policy=table.digest,
    )
    snapshot = snapshot_digest(version)
    lineage = Lineage(
        snapshot=snapshot,
        data=UNSET if features is None else features.data,
        feature_code=UNSET if features is None else features.feature_code,
        certificate=UNSET if features is None else features.certificate,
        weights=plan.weights,
        tokenizer=UNSET if plan.tokenizer is None else plan.tokenizer,
        infra=infra,
        policy=table.digest,
    )
    combination = Combination(
        lineage=lineage,
        version=version,
        model_name=plan.name,
        model_version=plan.version,
        policy_version=table.version,
        view=UNSET if plan.view is None else plan.view.name,
        view_version=UNSET if plan.view is None else plan.view.version,
    )
    return Combined(snapshot, Raw(_encode(lineage)), _encode(combination))
