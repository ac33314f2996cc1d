"""Naming a combination, and what differs between two policy sets."""

from contracts.features import FeatureLineage
from contracts.lineage import NOTHING, AiVersion, Combination, data_digest, snapshot_digest
from contracts.pack import Architecture, Manifest, ModelContract, Provenance, ViewReference
from contracts.policies import (
    ModelPolicy,
    ModelSpec,
    PolicySet,
    PublishedVersion,
    RoutePolicy,
    RouteSpec,
    SlaPolicy,
    SlaSpec,
)
from contracts.types import UNSET
from services.control_plane.ledger import Used
from services.control_plane.snapshots import Routed, choose, combine, differences, routed

PACK, WEIGHTS, INFRA, DATA, CODE = ("sha256:" + letter * 64 for letter in "abcde")
SLA = SlaPolicy(name="*", spec=SlaSpec())
POLICIES = PolicySet(
    version=3,
    policies=[
        ModelPolicy(
            name="m", spec=ModelSpec(versions=[PublishedVersion(version="1", digest=PACK)])
        ),
        RoutePolicy(name="m", spec=RouteSpec(default="1")),
    ],
)
LATER = PolicySet(version=4, policies=[*POLICIES.policies, SLA])
MODEL = Routed("m", "1", PACK)


def manifest(*, view: bool) -> Manifest:
    """A pack with or without a feature view."""
    reference = ViewReference(name="v", version="2", digest=CODE)
    return Manifest(
        format=1,
        contract=ModelContract(
            name="m", task="tensor", inputs=[], outputs=[], view=reference if view else UNSET
        ),
        architecture=Architecture(name="affine"),
        files=[],
        tensors=[],
        weights=WEIGHTS,
        provenance=Provenance(code=CODE),
    )


def used(policies: PolicySet, first_us: int, last_us: int, data: str = DATA) -> Used:
    """A combination that receipts of this time named."""
    features = FeatureLineage(data=data, feature_code=CODE)
    combination = combine(MODEL, policies, manifest(view=True), features, INFRA)
    return Used(combination, first_us, last_us)


def test_what_the_routes_name() -> None:
    """Each route's default with its pack."""
    assert routed(POLICIES) == [MODEL]


def test_a_model_without_a_view_has_no_data() -> None:
    """Its data digest is that of nothing, and the four members make the snapshot."""
    combination = combine(MODEL, POLICIES, manifest(view=False), None, INFRA)
    version = AiVersion(data=NOTHING, model=PACK, infra=INFRA, policy=POLICIES.digest())
    assert combination.version == version
    assert combination.lineage.snapshot == snapshot_digest(version)
    assert combination.lineage.weights == WEIGHTS
    assert combination.lineage.data is UNSET
    assert combination.view is UNSET


def test_a_model_with_a_view_names_sources_and_code() -> None:
    """Data = sources × feature code; both stand in the lineage as well."""
    combination = used(POLICIES, 0, 0).combination
    assert combination.version.data == data_digest(DATA, CODE)
    assert (combination.lineage.data, combination.lineage.feature_code) == (DATA, CODE)
    assert (combination.view, combination.view_version) == ("v", "2")


def test_at_an_instant_the_combination_in_use_is_chosen() -> None:
    """Of two data states the one whose receipts reach the instant; between them the newer one."""
    old, new = used(POLICIES, 10, 20), used(POLICIES, 30, 40, "sha256:" + "f" * 64)
    assert _chosen([new, old], 15) == old.combination
    assert _chosen([new, old], 35) == new.combination
    assert _chosen([new, old], 50) == new.combination


def _chosen(candidates: list[Used], at_us: int) -> Combination | None:
    known = [one for one in candidates if one.first_us <= at_us]
    return choose(known, MODEL, POLICIES, at_us)


def test_another_policy_set_changes_the_snapshot_alone() -> None:
    """Before the first receipt under a new policy set the data of the last one is named."""
    chosen = choose([used(POLICIES, 10, 20)], MODEL, LATER, 30)
    assert chosen is not None
    assert chosen.version.policy == LATER.digest() == chosen.lineage.policy
    assert chosen.version.data == data_digest(DATA, CODE)
    assert chosen.lineage.snapshot == snapshot_digest(chosen.version)
    assert chosen.policy_version == 4


def test_receipts_under_the_policy_in_force_come_first() -> None:
    """The combination of the right policy set wins over a younger one of another."""
    right, wrong = used(LATER, 10, 20), used(POLICIES, 15, 40, "sha256:" + "f" * 64)
    assert choose([wrong, right], MODEL, LATER, 30) == right.combination


def test_nothing_is_guessed() -> None:
    """Without receipts of this version there is no answer."""
    assert choose([], MODEL, POLICIES, 5) is None
    assert choose([used(POLICIES, 1, 2)], Routed("m", "2", PACK), POLICIES, 5) is None


def test_differences_have_both_sides() -> None:
    """Added, removed and changed policies, sorted by kind and name."""
    changed = RoutePolicy(name="m", spec=RouteSpec(default="1", aliases={"x": "1"}))
    after = PolicySet(version=5, policies=[SLA, changed])
    found = differences(POLICIES, after)
    assert [(one.kind, one.before is None, one.after is None) for one in found] == [
        ("model", False, True),
        ("route", False, False),
        ("sla", True, False),
    ]
    assert differences(after, after) == []
