"""The one way to a new policy version: check, prepare everywhere, append, activate everywhere.

One commit at a time. A commit that has begun runs to its end, even when its caller leaves.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from contracts.distribution import Position
from contracts.errors import MeshError
from contracts.limits import heartbeat_s
from contracts.policies import Policy, PolicySet
from contracts.types import UNSET
from services.control_plane import rules
from services.control_plane.candidate import Surroundings, packs_needed
from services.control_plane.chain import change, load, parse_instant
from services.control_plane.changes import Author, Change, Committed, Make, entry_of
from services.control_plane.commit_store import CommitStore
from services.control_plane.distributor import Distributor, Head
from services.control_plane.manifests import read_packs
from shared import logs
from shared.clock import Clock
from shared.policy_steps import compare

log = logs.get("services.control_plane.committer")

commits_waiting_max = 32
settle_s = 2 * heartbeat_s + 0.2
"""After a start the instances need a reconnect (≤ 1 s back-off) to be heard; a commit before that
would require nobody."""

Gate = Callable[[PolicySet, PolicySet], Awaitable[None]]
"""Raises MeshError when the second set may not follow the first."""


class Committer:
    """Commits policies. `fault` is why the log cannot be used (then nothing is committed)."""

    def __init__(
        self,
        store: CommitStore,
        distributor: Distributor,
        *,
        models_dir: Path,
        replicas: int,
        replicas_max: int,
        clock: Clock,
        settle_s: float = settle_s,
    ) -> None:
        self.fault: str | None = None
        self._store = store
        self._distributor = distributor
        self._models_dir = models_dir
        self._replicas, self._replicas_max = replicas, replicas_max
        self._clock = clock
        self._settle_s = settle_s
        self._settled_at_s = 0.0
        self._last_at_us = 0
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._running: set[asyncio.Task[Committed]] = set()
        self._renewal: asyncio.Task[None] | None = None
        self._gate: Gate | None = None
        distributor.on_ahead = self.on_ahead

    def guard(self, gate: Gate) -> None:
        """Have `gate` asked before each commit that needs sign-offs."""
        self._gate = gate

    async def load(self) -> None:
        """Walk the log and put its newest version in force; a broken log becomes a `fault`."""
        verdict = await self._store.verify()
        if verdict.broken_at is not UNSET:
            self.fault = (
                f"the commit log lies at version {verdict.broken_at} ({verdict.reason}); stop the"
                " mesh and put a copy of .mortise/policy.db in place"
            )
            log.error("commit_log_broken", version=verdict.broken_at, reason=verdict.reason)
            return
        last = await self._store.last()
        if last is not None:
            self._last_at_us = parse_instant(load(last).at)
        position = Position(
            epoch=await self._store.epoch(), sequence=verdict.commits, hash=verdict.head
        )
        self._distributor.head = Head(position, await self._store.replay())
        self._settled_at_s = self._clock.monotonic() + self._settle_s

    async def begin(self, policies: list[Policy], author: Author) -> None:
        """Commit the first version, before any instance can ask."""
        settled_at_s, self._settled_at_s = self._settled_at_s, 0.0
        await self.commit(lambda _before: Change(policies, needs_sign_offs=False), author)
        self._settled_at_s = settled_at_s

    async def commit(
        self, make: Make, author: Author, *, expected_version: int | None = None
    ) -> Committed:
        """Commit what `make` says of the set in force; answered once it is active everywhere.

        Raises POLICY_INVALID, VERSION_CONFLICT, POLICY_REJECTED, PACK_INVALID, DISK_FULL,
        OVERLOADED, UNAVAILABLE, and what `make` raises.
        """
        if self._waiting >= commits_waiting_max:
            raise MeshError(
                "OVERLOADED",
                f"{self._waiting} commits wait, commits_waiting_max is {commits_waiting_max}",
                details={"reason": "waiting"},
            )
        self._waiting += 1
        try:
            await self._lock.acquire()
        finally:
            self._waiting -= 1
        task = asyncio.create_task(
            self._commit(make, author, expected_version), name=author.trace_id
        )
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def on_ahead(self, position: Position) -> None:
        """An instance knows more than this log: the database was replaced or restored. A new
        epoch puts this log's version in force again, without anybody going back."""
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.create_task(self._renew(position))

    async def close(self) -> None:
        """Let what runs come to its end."""
        if self._renewal is not None:
            await asyncio.wait({self._renewal})
        if self._running:
            await asyncio.wait(self._running)

    def _ended(self, task: asyncio.Task[Committed]) -> None:
        self._running.discard(task)
        self._lock.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("commit_refused", trace_id=task.get_name(), reason=str(error))

    async def _commit(self, make: Make, author: Author, expected: int | None) -> Committed:
        head = self._distributor.head
        if head is None:
            raise MeshError("UNAVAILABLE", self.fault or "the commit log is not loaded yet")
        before = head.policies
        if expected is not None and expected != before.version:
            raise MeshError(
                "VERSION_CONFLICT",
                f"expected_version is {expected}, in force is {before.version}; read the policies"
                " again and repeat the change",
                details={"version": before.version},
            )
        changes = make(before)
        if changes is None:
            return Committed(before.version, head.position.hash, [], is_new=False)
        after = change(before, changes.changed, changes.removed)
        await self._check(before, after, changes)
        await asyncio.sleep(max(0.0, self._settled_at_s - self._clock.monotonic()))
        at_us = max(self._last_at_us, self._clock.wall_us())  # times in the log never go back
        entry = entry_of(head.position.hash, after, changes, author, at_us)
        position = Position(epoch=head.position.epoch, sequence=after.version, hash=entry.hash)
        push = await self._distributor.push(
            Head(position, after), lambda: self._store.append(entry), author.trace_id
        )
        self._last_at_us = at_us
        log.info(
            "committed",
            trace_id=author.trace_id,
            policy_version=after.version,
            author=author.name,
            reason=author.reason,
            peer_uid=author.peer_uid,
            fenced=push.fenced,
        )
        return Committed(after.version, entry.hash, push.fenced, is_new=True)

    async def _check(self, before: PolicySet, after: PolicySet, changes: Change) -> None:
        rules.check_changes(changes.changed)
        digests = packs_needed(before, after)
        loop = asyncio.get_running_loop()
        packs = await loop.run_in_executor(None, read_packs, self._models_dir, digests)
        rules.check(before, after, Surroundings(packs, self._replicas, self._replicas_max))
        if self._gate is not None and changes.needs_sign_offs:
            await self._gate(before, after)

    async def _renew(self, position: Position) -> None:
        async with self._lock:
            head = self._distributor.head
            if head is None or compare(position, head.position) not in ("newer", "conflict"):
                return
            epoch = max(position.epoch, head.position.epoch) + 1
            await self._store.raise_epoch(epoch)
            renewed = Position(
                epoch=epoch, sequence=head.position.sequence, hash=head.position.hash
            )
            log.warning("epoch_renewed", epoch=epoch, seen=position.sequence)
            self._distributor.renew(Head(renewed, head.policies))
