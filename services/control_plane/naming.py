"""Handler of `snapshot`: names the combination in force now, at an instant, or for a trace."""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

from contracts.control import Snapshot, SnapshotRequest, SplitShare
from contracts.errors import MeshError
from contracts.features import FeatureLineage, Views
from contracts.lineage import Combination
from contracts.pack import Manifest
from contracts.policies import VERSION_0, PolicySet
from contracts.types import UNSET, Empty
from services.control_plane import snapshots
from services.control_plane.accounts import Accounts
from services.control_plane.chain import format_instant
from services.control_plane.commit_store import CommitStore
from services.control_plane.distributor import Distributor
from services.control_plane.ledger import Ledger
from services.control_plane.manifests import read_packs
from services.control_plane.reading import instant_us
from services.control_plane.snapshots import Divided, Routed
from shared import logs
from shared.clock import Clock
from shared.rpc.client import RpcClient
from shared.rpc.server import Call

log = logs.get("services.control_plane.naming")
_fabric_timeout_s = 0.5


class Naming:
    """`snapshots` says where each member comes from; this asks for them."""

    def __init__(
        self,
        store: CommitStore,
        ledger: Ledger,
        accounts: Accounts,
        distributor: Distributor,
        fabric: RpcClient,
        *,
        models_dir: Path,
        infra: str,
        clock: Clock,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._accounts = accounts
        self._distributor = distributor
        self._fabric = fabric
        self._models_dir = models_dir
        self._infra = infra
        self._clock = clock

    async def snapshot(self, call: Call) -> Snapshot:
        """`.ai-version` of each routed model, or of one trace."""
        body: SnapshotRequest = call.body
        if body.trace_id is not UNSET:
            return await self._of_trace(call, body)
        now_us = self._clock.wall_us()
        if body.at is UNSET:
            head = self._distributor.head
            policies = VERSION_0 if head is None else head.policies
            routed = _routed(body, policies)
            shares = snapshots.divided(policies, routed)
            models = [*routed, *(share.model for share in shares)]
            combinations = await self._now(models, policies)
            return _answer(now_us, policies.version, combinations, shares)
        at_us = instant_us(body.at)
        if at_us > now_us:
            raise MeshError("INVALID_REQUEST", f"at: {body.at} lies in the future")
        policies = await self._store.replay(instant_us=at_us)
        routed = _routed(body, policies)
        shares = snapshots.divided(policies, routed)
        models = [*routed, *(share.model for share in shares)]
        combinations = [await self._then(model, policies, at_us) for model in models]
        return _answer(at_us, policies.version, combinations, shares)

    async def _of_trace(self, call: Call, body: SnapshotRequest) -> Snapshot:
        if body.at is not UNSET:
            raise MeshError("INVALID_REQUEST", "one of at and trace_id is expected, received both")
        assert body.trace_id is not UNSET
        found = await self._accounts.find(call, body.trace_id)
        return _answer(found.receipt.at_us, found.receipt.policy_version, [found.combination])

    async def _now(self, routed: Sequence[Routed], policies: PolicySet) -> list[Combination | None]:
        """From packs and the fabric's word on their views; where it is silent, from the ledger."""
        packs = await asyncio.to_thread(
            read_packs, self._models_dir, [model.digest for model in routed]
        )
        views = await self._views(packs.values())
        combinations: list[Combination | None] = []
        for model in routed:
            pack = packs[model.digest]
            features = None if isinstance(pack, str) else _features(pack, views)
            if isinstance(pack, str) or (features is None and pack.contract.view is not UNSET):
                combinations.append(await self._then(model, policies, self._clock.wall_us()))
            else:
                combinations.append(snapshots.combine(model, policies, pack, features, self._infra))
        return combinations

    async def _then(self, model: Routed, policies: PolicySet, at_us: int) -> Combination | None:
        used = await self._ledger.combinations(model.model, at_us)
        return snapshots.choose(used, model, policies, at_us)

    async def _views(self, packs: Iterable[Manifest | str]) -> Views:
        """What the fabric holds; nothing when no pack has a view or the fabric is away."""
        if not any(
            isinstance(pack, Manifest) and pack.contract.view is not UNSET for pack in packs
        ):
            return Views(views=[])
        try:
            views: Views = await self._fabric.call("views", Empty(), timeout_s=_fabric_timeout_s)
        except MeshError as error:
            log.warning("fabric_silent", reason=error.message)
            return Views(views=[])
        return views


def _features(pack: Manifest, views: Views) -> FeatureLineage | None:
    """The lineage that the fabric reports for the view that this pack was trained on."""
    reference = pack.contract.view
    for view in views.views:
        if reference is not UNSET and view.digest == reference.digest:
            return None if view.lineage is UNSET else view.lineage
    return None


def _routed(body: SnapshotRequest, policies: PolicySet) -> list[Routed]:
    routed = [model for model in snapshots.routed(policies) if body.model in (UNSET, model.model)]
    if body.model is not UNSET and not routed:
        raise MeshError(
            "MODEL_UNKNOWN", f"{body.model} has no route in policy version {policies.version}"
        )
    return routed


def _answer(
    at_us: int,
    policy_version: int,
    combinations: Sequence[Combination | None],
    divided: Sequence[Divided] = (),
) -> Snapshot:
    """The last combinations are those of `divided`, in its order."""
    count = len(combinations) - len(divided)
    known = {one.model_name: one for one in combinations[:count] if one is not None}
    shares: dict[str, list[SplitShare]] = {}
    for share, combination in zip(divided, combinations[count:], strict=True):
        shares.setdefault(share.model.model, []).append(
            SplitShare(
                version=share.model.version,
                slots=share.slots,
                combination=UNSET if combination is None else combination,
            )
        )
    return Snapshot(
        at=format_instant(at_us),
        policy_version=policy_version,
        versions={name: one.version for name, one in known.items()},
        combinations=known,
        shares=shares,
    )
