"""Handlers that make commits: apply, publish, promote, rollback."""

import asyncio
from pathlib import Path

from contracts import control
from contracts.control import PromoteStep
from contracts.errors import MeshError
from contracts.policies import PolicySet, RoutePolicy
from contracts.types import UNSET
from services.control_plane import versions
from services.control_plane.chain import Entry
from services.control_plane.changes import Author, Change
from services.control_plane.commit_store import CommitStore
from services.control_plane.committer import Committer
from services.control_plane.promotion import Promotion
from services.control_plane.signing import Signing
from shared.packs import read_manifest
from shared.rpc.server import Call


class Writing:
    """Each handler says what changes; `Committer` does the rest."""

    def __init__(
        self,
        store: CommitStore,
        committer: Committer,
        promotion: Promotion,
        signing: Signing,
        models_dir: Path,
    ) -> None:
        self._store = store
        self._committer = committer
        self._promotion = promotion
        self._signing = signing
        self._models_dir = models_dir

    async def apply(self, call: Call) -> control.Applied:
        """Several policies put in and taken out in one commit; those that are in force already
        make none."""
        body: control.Apply = call.body
        removed = [(key.kind, key.name) for key in body.remove]
        if not body.policies and not removed:
            raise MeshError(
                "INVALID_REQUEST",
                "apply: policies or remove names at least one policy; received neither",
            )
        committed = await self._committer.commit(
            lambda before: versions.put_in_and_out(before, body.policies, removed),
            Author(body.author, body.reason, call.peer.uid, call.trace_id),
            expected_version=None if body.expected_version is UNSET else body.expected_version,
        )
        return control.Applied(
            version=committed.version,
            commit=committed.commit,
            fenced=committed.fenced,
            changed=committed.is_new,
        )

    async def publish(self, call: Call) -> control.Published:
        """Name a staged pack as its model's next version; with an alias also bring it into
        service under that alias."""
        body: control.Publish = call.body
        manifest = await asyncio.to_thread(read_manifest, self._models_dir, body.digest)
        model = manifest.contract.name
        author = Author(body.author, f"publish {model} {body.digest}", call.peer.uid, call.trace_id)
        found: list[str] = []

        def make(policies: PolicySet) -> Change | None:
            known = versions.version_of(policies, model, body.digest)
            if known is not None:
                found[:] = [known]
                return None
            policy = versions.publish(policies, model, body.digest)
            found[:] = [policy.spec.versions[-1].version]
            return Change([policy])

        await self._committer.commit(make, author)
        if body.alias is not UNSET:
            await self._set_alias(call, model, body.alias, found[0], author)
        return control.Published(model=model, version=found[0], digest=body.digest)

    async def promote(self, call: Call) -> control.Promoted:
        """Deploy a version, wait until it is ready everywhere, route to it."""
        body: control.Promote = call.body

        def tell(step: PromoteStep) -> None:
            if call.wants_stream:
                call.stream(step)

        await self._signing.check_promotion(body.model, body.version)
        promoted = await self._promotion.promote(
            body.model,
            body.version,
            Author(body.author, body.reason, call.peer.uid, call.trace_id),
            call.deadline_s,
            tell,
        )
        return control.Promoted(
            model=body.model,
            version=body.version,
            policy_version=promoted.committed.version,
            from_version=promoted.from_version,
            diverted_by=promoted.diverted_by,
        )

    async def rollback(self, call: Call) -> control.RolledBack:
        """A model's previous route, or the whole state of a version, as a new commit."""
        body: control.Rollback = call.body
        if (body.model is UNSET) == (body.to is UNSET):
            raise MeshError("INVALID_REQUEST", "exactly one of model and to is expected")
        if body.model is not UNSET:
            author = Author(body.author, f"rollback of {body.model}", call.peer.uid, call.trace_id)
            return await self._roll_back_route(body.model, author)
        assert body.to is not UNSET
        author = Author(body.author, f"rollback to version {body.to}", call.peer.uid, call.trace_id)
        return await self._roll_back_all(body.to, author, call.deadline_s)

    async def _roll_back_route(self, model: str, author: Author) -> control.RolledBack:
        def choose(entry: Entry) -> RoutePolicy | None:
            """The newest state is the first seen, None once it is removed; then the first route
            that differs from it."""
            if not seen and ("route", model) in entry.removed:
                seen.append(None)
            for policy in entry.changed:
                if isinstance(policy, RoutePolicy) and policy.name == model:
                    seen.append(policy)
                    return policy if policy != seen[0] else None
            return None

        seen: list[RoutePolicy | None] = []
        previous = await self._store.newest(choose)
        if not seen:
            raise MeshError("MODEL_UNKNOWN", f"{model} never had a route")
        if previous is None:
            raise MeshError(
                "POLICY_INVALID",
                f"route {model}: a rollback needs an earlier route; received {model}, whose route"
                " never changed; promote another version instead",
            )

        def make(policies: PolicySet) -> Change:
            if versions.route_of(policies, model) != seen[0]:
                raise MeshError("VERSION_CONFLICT", f"the route of {model} changed meanwhile")
            diverted_by[:] = versions.diverting(policies, model, previous.spec.default)
            return Change([previous], needs_sign_offs=False)

        diverted_by: list[control.Diverting] = []
        committed = await self._committer.commit(make, author)
        return control.RolledBack(
            version=committed.version,
            commit=committed.commit,
            model=model,
            from_version=UNSET if seen[0] is None else seen[0].spec.default,
            to_version=previous.spec.default,
            diverted_by=diverted_by,
        )

    async def _roll_back_all(
        self, version: int, author: Author, deadline_s: float
    ) -> control.RolledBack:
        then = await self._store.replay(version=version)
        if then.version != version:
            raise MeshError(
                "POLICY_INVALID",
                f"version {version} does not exist, the newest is {then.version}",
            )
        for model, routed in sorted(versions.routed_versions(then)):
            if not self._promotion.is_deployed(model, routed):
                await self._promotion.deploy(model, routed, author, deadline_s)

        def make(policies: PolicySet) -> Change | None:
            changed, removed = versions.restore(policies, then)
            return Change(changed, removed, needs_sign_offs=False) if changed or removed else None

        committed = await self._committer.commit(make, author)
        return control.RolledBack(version=committed.version, commit=committed.commit)

    async def _set_alias(
        self, call: Call, model: str, alias: str, version: str, author: Author
    ) -> None:
        def make(policies: PolicySet) -> Change | None:
            policy = versions.alias_to(policies, model, alias, version)
            return None if policy is None else Change([policy])

        await self._promotion.deploy(model, version, author, call.deadline_s)
        await self._committer.commit(make, author.because(f"alias {alias} = {version}"))
