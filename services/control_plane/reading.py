"""Handlers that read the policies and their log: policies, commits, verify, diff, status."""

import apsw

from contracts import control
from contracts.errors import MeshError
from contracts.policies import VERSION_0, PolicySet
from contracts.types import UNSET
from services.control_plane import snapshots
from services.control_plane.chain import commit_of, parse_instant
from services.control_plane.commit_store import CommitStore
from services.control_plane.distributor import NOWHERE, Distributor
from services.control_plane.ledger import Ledger
from shared.clock import Clock
from shared.rpc.server import Call


class Reading:
    """Nothing here waits for a commit; what is not in memory is read in a reader's thread."""

    def __init__(
        self, store: CommitStore, ledger: Ledger, distributor: Distributor, clock: Clock
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._distributor = distributor
        self._clock = clock

    async def policies(self, call: Call) -> control.PoliciesInForce:
        """The set in force now, at an instant or at a version."""
        at = call.body.at
        if at is UNSET:
            policies = self._in_force
        elif isinstance(at, str):
            policies = await self._store.replay(instant_us=instant_us(at))
        else:
            policies = await self._at_version(at)
        return control.PoliciesInForce(
            version=policies.version, digest=policies.digest(), policies=policies.policies
        )

    async def commits(self, call: Call) -> control.Commits:
        """A page of the log."""
        limit = call.body.limit
        page = await self._store.page(call.body.after, limit + 1)
        return control.Commits(
            commits=[commit_of(stored) for stored in page[:limit]], more=len(page) > limit
        )

    async def verify(self, _call: Call) -> control.Verified:
        """Walk the hash chain from its beginning."""
        try:
            verdict = await self._store.verify()
        except apsw.CorruptError as error:
            return control.Verified(
                valid=False, commits=0, head=NOWHERE.hash, reason=f"policy.db: {error}"
            )
        return control.Verified(
            valid=verdict.broken_at is UNSET,
            commits=verdict.commits,
            head=verdict.head,
            broken_at=verdict.broken_at,
            reason=verdict.reason,
        )

    async def diff(self, call: Call) -> control.Differences:
        """What differs between two versions."""
        since = await self._at_version(call.body.since)
        until = await self._at_version(call.body.until)
        return control.Differences(differences=snapshots.differences(since, until))

    def status(self, _call: Call) -> control.Status:
        """Who has which version."""
        head = self._distributor.head
        return control.Status(
            version=self._in_force.version,
            position=NOWHERE if head is None else head.position,
            instances=self._distributor.instances.rows(self._clock.monotonic()),
            receipts=self._ledger.totals.receipts,
            requests_counted=self._ledger.totals.requests,
        )

    @property
    def _in_force(self) -> PolicySet:
        head = self._distributor.head
        return VERSION_0 if head is None else head.policies

    async def _at_version(self, version: int) -> PolicySet:
        if version == self._in_force.version:
            return self._in_force
        policies = await self._store.replay(version=version)
        if policies.version != version:
            raise MeshError(
                "POLICY_INVALID",
                f"version {version} does not exist, the newest is {policies.version}",
            )
        return policies


def instant_us(text: str) -> int:
    """Microseconds since 1970 of an operator's instant. Raises INVALID_REQUEST."""
    try:
        return parse_instant(text)
    except ValueError as error:
        raise MeshError("INVALID_REQUEST", f"at: {error}") from error
