"""Handlers of the contract page and its sign-offs, and the gate that asks for them.

A sign-off is a commit that names a digest and a role, so it survives restarts, and no rollback
takes it back. What stands on the page is `home_page`'s.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contracts import signing
from contracts.errors import MeshError
from contracts.page import digest_of
from contracts.policies import PolicySet
from contracts.types import UNSET, Scalar, UnsetType
from services.control_plane import home_page, versions
from services.control_plane.candidate import published
from services.control_plane.chain import StoredEntry, change, load
from services.control_plane.changes import Author, Change
from services.control_plane.commit_store import CommitStore
from services.control_plane.committer import Committer
from services.control_plane.distributor import Distributor
from services.control_plane.home_page import PackTerms, RuntimeTerms
from shared.home import CONFIG_NAME, Config, Home
from shared.packs import read_manifest
from shared.rpc.server import Call
from shared.view_headers import read_pack_header

_attempts_max = 5
"""A sign-off is made for one state of the policies; another commit between is looked at again."""
SHOW = "mortise contracts show"


class Signing:
    """Answers `contracts` and `contracts_sign`; its `gate` guards every commit."""

    def __init__(
        self,
        store: CommitStore,
        committer: Committer,
        distributor: Distributor,
        models_dir: Path,
        runtime: RuntimeTerms,
    ) -> None:
        self._store = store
        self._committer = committer
        self._distributor = distributor
        self._models_dir = models_dir
        self._runtime = runtime
        committer.guard(self.gate)

    async def contracts(self, call: Call) -> signing.ContractPage:
        """The page in force, or a pack's; who must sign and who has."""
        policies = self._in_force
        page = await self._page(await self._with_pack(policies, call.body.pack))
        digest = digest_of(page)
        return signing.ContractPage(
            digest=digest,
            policy_version=policies.version,
            page=page,
            required=home_page.required(policies),
            signed=[_sign_off(stored) for stored in await self._store.signatures(digest)],
        )

    async def sign(self, call: Call) -> signing.ContractsSigned:
        """Commit a sign-off of the page in force, or of a pack's; the same twice makes none."""
        body: signing.ContractsSign = call.body
        author = Author(
            body.author, f"sign off {body.digest} as {body.role}", call.peer.uid, call.trace_id
        )
        for _attempt in range(_attempts_max - 1):
            try:
                return await self._sign(body, author)
            except MeshError as error:
                if "version" not in (error.details or {}):
                    raise
        return await self._sign(body, author)

    async def check_promotion(self, model: str, version: str) -> None:
        """Raise what `gate` would say of the route, before anything is loaded for it."""
        before = self._in_force
        if (model, version) in published(before):
            await self.gate(before, home_page.answering(before, model, version))

    async def gate(self, before: PolicySet, after: PolicySet) -> None:
        """Raise POLICY_REJECTED when a version is published, or reached by traffic, whose page has
        not been signed by every role that the policies before or after ask for."""
        for model, version in home_page.newly_offered(before, after):
            needed = home_page.roles(before, model) | home_page.roles(after, model)
            if not needed:
                continue
            digest = digest_of(await self._page(home_page.answering(after, model, version)))
            signed = {_sign_off(row).role for row in await self._store.signatures(digest)}
            if missing := sorted(needed - signed):
                raise await self._refusal(before, after, (model, version), digest, missing)

    # --- inside

    @property
    def _in_force(self) -> PolicySet:
        head = self._distributor.head
        if head is None:
            raise MeshError("UNAVAILABLE", self._committer.fault or "the log is not loaded yet")
        return head.policies

    async def _sign(self, body: signing.ContractsSign, author: Author) -> signing.ContractsSigned:
        policies = self._in_force
        current = digest_of(await self._page(await self._with_pack(policies, body.pack)))
        if body.digest != current:
            whose = "in force" if body.pack is UNSET else f"with pack {body.pack}"
            look = SHOW if body.pack is UNSET else f"{SHOW} --pack {body.pack}"
            raise MeshError(
                "VERSION_CONFLICT",
                f"the page {whose} is {current}, received {body.digest}; read it again before it"
                f" is signed: {look}",
                details={"digest": current},
            )
        for stored in await self._store.signatures(current):
            if _sign_off(stored).role == body.role:
                return _signed(body, stored.version, stored.hash, changed=False)
        signature = signing.Signature(digest=current, role=body.role)
        committed = await self._committer.commit(
            lambda _before: Change([], signed=signature), author, expected_version=policies.version
        )
        return _signed(body, committed.version, committed.commit, changed=True)

    async def _with_pack(self, policies: PolicySet, pack: str | UnsetType) -> PolicySet:
        """The set in which a staged pack answers for its model by default."""
        if pack is UNSET:
            return policies
        manifest = await asyncio.to_thread(read_manifest, self._models_dir, pack)
        model = manifest.contract.name
        version = versions.version_of(policies, model, pack)
        if version is None:
            row = versions.publish(policies, model, pack)
            policies, version = change(policies, [row]), row.spec.versions[-1].version
        return home_page.answering(policies, model, version)

    async def _page(self, policies: PolicySet) -> dict[str, Any]:
        packs = home_page.packs_on_page(policies)
        terms = await asyncio.to_thread(self._read, [digest for _, digest in packs])
        models = [model for model, _ in packs]
        return home_page.home_page(policies, zip(models, terms, strict=True), self._runtime)

    def _read(self, digests: Sequence[str]) -> list[PackTerms]:
        """In a thread. Raises PACK_INVALID: a page without one of its models would be another."""
        terms: list[PackTerms] = []
        for digest in digests:
            contract = read_manifest(self._models_dir, digest).contract
            has_view = contract.view is not UNSET
            view = read_pack_header(self._models_dir, digest) if has_view else None
            terms.append(PackTerms(contract, view))
        return terms

    async def _refusal(
        self,
        before: PolicySet,
        after: PolicySet,
        offered: tuple[str, str],
        digest: str,
        missing: list[str],
    ) -> MeshError:
        """Names the roles, the digest and the command that signs it."""
        model, version = offered
        pack = published(after)[offered]
        details: dict[str, Scalar] = {"digest": digest, "roles": ", ".join(missing)}
        of = ""
        if digest != digest_of(await self._page(before)):
            of = f" --pack {pack}"
            details["pack"] = pack
        line = f"mortise contracts sign --role {missing[0]} --digest {digest}{of}"
        if digest != digest_of(await self._page(await self._with_pack(before, pack))):
            line = "commit the other policies of this change first, then see mortise contracts show"
        return MeshError(
            "POLICY_REJECTED",
            f"{model} {version}: its contract page {digest} is not signed by"
            f" {', '.join(missing)}; each of them signs with: {line}",
            details=details,
        )


def runtime_terms(path: Path) -> RuntimeTerms:
    """`[runtime]` of a home's file; the built-in terms where there is none."""
    home = Home(path)
    file = home.config() if (home.path / CONFIG_NAME).exists() else Config(home_version=1)
    return RuntimeTerms(file.runtime.memory_mib_max, file.runtime.threads)


def _sign_off(stored: StoredEntry) -> signing.SignOff:
    entry = load(stored)
    assert entry.signed is not UNSET, "the store was asked for sign-offs"
    return signing.SignOff(
        role=entry.signed.role,
        author=entry.author,
        at=entry.at,
        peer_uid=entry.peer_uid,
        version=entry.version,
    )


def _signed(
    body: signing.ContractsSign, version: int, commit: str, *, changed: bool
) -> signing.ContractsSigned:
    return signing.ContractsSigned(
        digest=body.digest, role=body.role, version=version, commit=commit, changed=changed
    )
