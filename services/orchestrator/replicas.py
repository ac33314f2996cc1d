"""The runtimes: which of them gets a batch, and what became of it.

A batch takes one of its replica's credits until it is answered, lost or given up. On the loop's
thread only.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from contracts.errors import MeshError
from contracts.execution import Executed
from services.orchestrator.config import (
    credit_retry_s,
    models_poll_s,
    models_poll_s_min,
    ready_grace_s,
)
from services.orchestrator.deadlines import Awaited, Wheel
from services.orchestrator.execution import Batch
from services.orchestrator.plan import Key, ModelPlan
from services.orchestrator.replica import Replica
from services.orchestrator.request import Where
from services.orchestrator.reserve import SHARED, share_out
from services.orchestrator.stamps import silent
from shared import logs
from shared.clock import Clock
from shared.deadline import remaining_ms

log = logs.get("services.orchestrator.replicas")

OnAnswer = Callable[[Batch, Executed | None, MeshError | None], None]
_NOT_HERE = frozenset({"MODEL_NOT_READY", "MODEL_UNKNOWN"})


class Replicas:
    """Every runtime socket of the home; `ready` has the replicas that take a version now.

    `on_answer` gets each batch that was sent, once, unless it was abandoned; `on_change` is called
    when a batch may go where it could not before.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        clock: Clock,
        wheel: Wheel[Awaited],
        on_answer: OnAnswer,
        on_change: Callable[[], None],
    ) -> None:
        self.all = [Replica(index, path, clock, self._changed) for index, path in enumerate(paths)]
        self._clock = clock
        self._wheel = wheel
        self._on_answer = on_answer
        self._on_change = on_change
        self._wanted: frozenset[Key] = frozenset()
        self.ready: dict[Key, list[Replica]] = {}
        self.reservations: Mapping[int, int] = {}
        self._given: dict[Key, dict[int, Sequence[Replica]]] = {}
        self._left_s: dict[Key, float] = {}
        self._started_s = clock.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    # Who has what.

    def want(self, plans: Iterable[ModelPlan]) -> None:
        """The versions that requests may need; what misses one of them is polled often."""
        self._wanted = frozenset(plan.key for plan in plans)
        self._left_s = {key: at for key, at in self._left_s.items() if key in self._wanted}
        for replica in self.all:
            replica.poll_due.set()

    def is_expected(self, plan: ModelPlan) -> bool:
        """It was ready, or this process began, less than `ready_grace_s` ago."""
        left_s = self._left_s.get(plan.key, self._started_s)
        return self._clock.monotonic() - left_s < ready_grace_s

    def ready_count(self, key: Key) -> int:
        """How many replicas have this version ready."""
        return len(self.ready.get(key, ()))

    def states(self, key: Key) -> Collection[str]:
        """What the replicas say of this version."""
        return {
            model.state
            for replica in self.all
            for model in replica.loaded
            if (model.name, model.version, model.digest) == key
        }

    def _changed(self) -> None:
        before = self.ready
        self.ready = {}
        for replica in self.all:
            for key in replica.ready:
                self.ready.setdefault(key, []).append(replica)
        self._share_out()
        now_s = self._clock.monotonic()
        for key in before.keys() - self.ready.keys():
            if key in self._wanted:
                self._left_s[key] = now_s
        self._on_change()

    def reserve(self, reservations: Mapping[int, int]) -> None:
        """From now on so many replicas of each version are for one risk class only."""
        self.reservations = reservations
        self._share_out()

    def _share_out(self) -> None:
        self._given = {
            key: share_out(ready, self.reservations) for key, ready in self.ready.items()
        }

    def given(self, plan: ModelPlan) -> Mapping[int, Sequence[Replica]]:
        """The replicas that have the version ready by who may use them: SHARED, or one class."""
        return self._given.get(plan.key, {})

    # Batches.

    def choose(self, plan: ModelPlan, now_s: float, for_whom: int = SHARED) -> Replica | None:
        """The replica that has the version ready, a credit, and the least to do."""
        best = None
        for replica in self.given(plan).get(for_whom, ()):
            if replica.has_credit(now_s) and (best is None or replica.is_before(best)):
                best = replica
        return best

    def send(self, replica: Replica, batch: Batch, now_s: float) -> None:
        """Hand a batch to a replica that was chosen."""
        batch.replicas, batch.replica = self, replica
        batch.is_out = True
        batch.instance = replica.instance
        replica.batches.add(batch)
        replica.free_s = max(now_s, replica.free_s) + batch.expected_s
        if batch.has_own_deadline:  # else it is abandoned when the last of its requests ends
            self._wheel.add(batch)
        batch.msgid = replica.client.call_nowait(
            "execute",
            batch.encode(now_s),
            batch.answered,
            trace_id=batch.parts[0].work.call.trace_id,
            deadline_ms=remaining_ms(batch.deadline_s, now_s),
        )
        replica.client.flush()
        batch.sent_s = self._clock.monotonic()

    def abandon(self, batch: Batch) -> None:
        """Nobody waits for this batch any more: tell the runtime, take the credit back."""
        assert batch.replica is not None, "it was sent"
        batch.replica.client.cancel(batch.msgid)
        self._finish(batch, self._clock.monotonic())
        batch.parts = []  # breaks the cycle of batch and parts
        self._on_change()

    def give_up(self, batch: Batch) -> None:
        """The runtime took longer than its share."""
        if not batch.is_out:
            return
        assert batch.replica is not None, "it was sent"
        batch.replica.client.cancel(batch.msgid)
        share_s = batch.deadline_s - batch.taken_s
        self.answered(batch, None, silent(Where.EXECUTE, batch.instance, share_s))

    def answered(self, batch: Batch, executed: Executed | None, error: MeshError | None) -> None:
        """The runtime's answer to a batch, or its loss."""
        if not batch.is_out:
            return  # it was abandoned before it could be sent
        replica = batch.replica
        assert replica is not None, "it was sent"
        batch.answered_s = self._clock.monotonic()
        self._finish(batch, batch.answered_s)
        if error is not None and error.name in _NOT_HERE:
            replica.ready -= {batch.plan.key}
            replica.poll_due.set()
            self._changed()
        elif error is not None and error.name == "OVERLOADED":
            replica.paused_until_s = batch.answered_s + credit_retry_s
            asyncio.get_running_loop().call_later(credit_retry_s, self._on_change)
        self._on_answer(batch, executed, error)

    def _finish(self, batch: Batch, now_s: float) -> None:
        replica = batch.replica
        assert replica is not None, "it was sent"
        batch.is_out = False
        replica.batches.remove(batch)
        replica.free_s = now_s
        for left in replica.batches:
            replica.free_s += left.expected_s
        if batch.has_own_deadline:
            self._wheel.discard(batch)

    # Life.

    async def start(self) -> None:
        """Begin to dial and to poll."""
        for replica in self.all:
            self._tasks.append(asyncio.create_task(self._poll(replica), name="poll"))

    async def _poll(self, replica: Replica) -> None:
        while True:
            try:
                if not replica.client.connected:
                    await replica.client.connect(models_poll_s)
                await replica.poll()
            except MeshError as error:
                log.debug("replica_silent", index=replica.index, reason=str(error))
            is_whole = self._wanted <= self.ready.keys()
            try:
                async with asyncio.timeout(models_poll_s if is_whole else models_poll_s_min):
                    await replica.poll_due.wait()
            except TimeoutError:
                continue
            replica.poll_due.clear()

    async def close(self) -> None:
        """Stop polling and hang up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(replica.client.close() for replica in self.all))
