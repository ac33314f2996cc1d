"""The policies in force in one process, and the last good set on its disk.

Does not judge policies: the service gives `check` and `activate`. With the control plane dead the
set in force stays. An item is taken only after the one before it is finished; a candidate is on
disk before `valid` is said, and renamed to last good before `active` is said.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, cast

from contracts.distribution import (
    Acknowledge,
    PolicyItem,
    Position,
    Report,
    Service,
    Subscribe,
    ViewState,
)
from contracts.errors import MeshError
from contracts.pack import LoadedModel
from contracts.policies import VERSION_0, PolicySet
from contracts.types import UNSET, Empty
from shared import logs
from shared.environment import Environment
from shared.last_good import LastGood, LastGoodFile
from shared.policy_heartbeat import Heartbeat
from shared.policy_steps import choose_step, compare
from shared.policy_stream import PolicyStream
from shared.rpc.client import RpcClient

log = logs.get("shared.policy_follower")
_confirm_s_max = 0.03
"""How long a promoted instance waits for the control plane before it serves: usually a round trip
of a millisecond; one that is stopped or dead must not hold up requests."""


@dataclass(frozen=True, slots=True)
class ReportParts:
    """What the service adds to each report."""

    ready: bool
    models: list[LoadedModel] = field(default_factory=list)
    views: list[ViewState] = field(default_factory=list)


class PolicyFollower:
    """Keeps `current`, the set in force, at `position` (None: version 0).

    `check` returns a reason or None, is pure and takes ≤ 20 ms; `activate` is quick and never
    fails; all three callbacks run on the loop. `fenced`: the control plane has a version that did
    not get here, so the service is not ready. A service that is promoted from standby calls
    `promoted()`; a standby follows in memory and leaves the last-good file to the active one.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        check: Callable[[PolicySet], str | None],
        activate: Callable[[PolicySet], None],
        report: Callable[[], ReportParts],
    ) -> None:
        self.current: PolicySet = VERSION_0
        self.position: Position | None = None
        self._environment = environment
        self._check, self._activate, self._report_parts = check, activate, report
        self._role: Literal["active", "standby"] = "standby" if environment.standby else "active"
        self._file = _last_good_file(environment)
        self._on_disk: Position | None = None
        self._prepared: tuple[Position, PolicySet] | None = None
        self._client = RpcClient(
            str(environment.run_dir / "control_plane.sock"),
            "control_plane",
            clock=environment.clock,
            on_connected=self.report_now,
            on_lost=self._lost,
        )
        self._stream = PolicyStream(self._client, self._subscription)
        self._heartbeat = Heartbeat(
            self._client, environment.clock, self._report, self._stream.restart
        )
        self._moved = asyncio.Event()
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="last-good")
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Put the last good set (else version 0) in force and follow in the background."""
        self._file.sweep(self._environment.clock.wall())
        stored, reason = self._file.read()
        if stored is not None and (refusal := self._check(stored.policies)) is not None:
            stored, reason = None, f"this process refuses it: {refusal}"
        if stored is not None:
            self.current, self.position = stored.policies, stored.position
            self._on_disk = stored.position
        elif reason != "absent":
            log.error("last_good_unusable", reason=reason, policy_version=0)
        self._activate(self.current)
        for work in (self._stream.run, self._take_items, self._heartbeat.run):
            task = asyncio.create_task(work(), name=work.__qualname__)
            task.add_done_callback(_surface)
            self._tasks.append(task)

    async def close(self) -> None:
        """Stop following; what is in force stays in force. The goodbye is heard before the
        subscription ends: a commit meanwhile neither waits for this instance nor misses it."""
        if self._tasks:
            await _end(self._tasks[-1:])  # the heartbeat: nothing is reported after the goodbye
            await self._heartbeat.say_goodbye()
            await _end(self._tasks)
        await self._client.close()
        self._disk.shutdown(wait=False)

    @property
    def fenced(self) -> bool:
        """The control plane has a version that did not get here: the service is not ready."""
        return self._heartbeat.fenced

    async def promoted(self) -> None:
        """From now on this instance is required for a push and owns the last-good file. Returns
        once what the control plane has in force is in force here, so that nobody is answered by
        an older set than an operator was told of; without an answer from it, soon."""
        if self._role == "active":
            return
        self._role, self._on_disk, self._prepared = "active", None, None
        self._catch_up()
        first = self._stream.renew()
        self.report_now()
        if first is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_confirm_s_max):
                    await self._has_in_force(await first)

    def report_now(self) -> None:
        """Send the next report at once: something in it changed."""
        self._heartbeat.now()

    def statistics(self) -> dict[str, int | bool]:
        """Where this follower stands."""
        return {
            "policy_version": self.current.version,
            "policy_fenced": self.fenced,
            "policy_items_waiting": self._stream.items.qsize(),
        }

    async def _has_in_force(self, item: PolicyItem) -> None:
        while compare(item.position, self.position) == "newer":
            self._moved.clear()
            await self._moved.wait()

    def _catch_up(self) -> None:
        """Put in force what the predecessor left on the disk, if it is newer: a standby hears of a
        set later than those who serve, or its control plane is away."""
        stored, _reason = self._file.read()
        if stored is None or compare(stored.position, self.position) != "newer":
            return
        if (refusal := self._check(stored.policies)) is not None:
            log.error("last_good_unusable", reason=refusal, policy_version=self.current.version)
            return
        self.current, self.position = stored.policies, stored.position
        self._on_disk = stored.position
        self._activate(stored.policies)

    def _lost(self) -> None:
        """Also when the control plane drains: a subscription that never ends must not hold it."""
        self._stream.restart()

    def _subscription(self) -> Subscribe:
        return Subscribe(
            service=cast(Service, self._environment.service),
            instance=self._environment.instance,
            position=UNSET if self._on_disk is None else self._on_disk,
        )

    async def _take_items(self) -> None:
        while True:
            await self._take(await self._stream.items.get())

    async def _take(self, item: PolicyItem) -> None:
        step = choose_step(item, self.position, self._prepared)
        trace_id = logs.NONE if item.trace_id is UNSET else item.trace_id
        log.info(
            "policy_item",
            trace_id=trace_id,
            action=item.action,
            step=step.action,
            sequence=item.position.sequence,
            policy_version=self.current.version,
        )
        if step.action == "refuse":
            self._acknowledge(item.position, "invalid", step.reason)
        elif step.action == "drop":
            self._prepared = None
        elif step.action == "repeat":
            await self._keep(LastGood(position=item.position, policies=self.current))
        else:
            assert step.policies is not None
            candidate = LastGood(position=item.position, policies=step.policies)
            if step.action == "store":
                await self._store(candidate)
            else:
                await self._put_in_force(candidate, is_checked=step.is_prepared)

    async def _store(self, candidate: LastGood) -> None:
        """Check the candidate and write it aside: valid, or invalid with the reason."""
        self._prepared = None
        refusal = self._check(candidate.policies) or await self._write(candidate)
        if refusal is None:
            self._prepared = (candidate.position, candidate.policies)
            self._acknowledge(candidate.position, "valid")
        else:
            self._acknowledge(candidate.position, "invalid", refusal)

    async def _put_in_force(self, candidate: LastGood, *, is_checked: bool) -> None:
        """Activate first, then make it the last good set on the disk."""
        refusal = None if is_checked else self._check(candidate.policies)
        if refusal is not None:
            self._acknowledge(candidate.position, "invalid", refusal)
            return
        self.current, self.position = candidate.policies, candidate.position
        self._activate(candidate.policies)
        self._moved.set()
        await self._keep(candidate)

    async def _keep(self, in_force: LastGood) -> None:
        """Make the set in force the last good one and say active."""
        refusal = None
        if self._role == "active" and self._on_disk != in_force.position:
            if self._prepared is None or self._prepared[0] != in_force.position:
                refusal = await self._write(in_force)
            refusal = refusal or await self._on_disk_thread(self._file.adopt_candidate)
        self._prepared = None
        if refusal is None:
            self._on_disk = in_force.position
            self._acknowledge(in_force.position, "active")
            self.report_now()  # a promotion waits for what this instance holds since then
        else:
            self._acknowledge(in_force.position, "invalid", refusal)

    async def _write(self, candidate: LastGood) -> str | None:
        if self._role == "standby":
            return None
        return await self._on_disk_thread(self._file.write_candidate, candidate)

    async def _on_disk_thread(self, work: Callable[..., None], *arguments: object) -> str | None:
        """Run disk work in its one thread, in order; the reason if the disk refuses."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._disk, work, *arguments)
        except OSError as error:
            log.warning("last_good_not_written", reason=str(error))
            return f"{self._file.path.name} cannot be written: {error.strerror}"
        return None

    def _acknowledge(
        self, position: Position, state: Literal["valid", "invalid", "active"], reason: str = ""
    ) -> None:
        body = Acknowledge(
            instance=self._environment.instance,
            position=position,
            state=state,
            reason=reason or UNSET,
        )
        self._client.call_nowait("acknowledge", body, self._acknowledged)

    def _acknowledged(self, _answer: Empty | None, error: MeshError | None) -> None:
        """A lost acknowledgement is made good by the next subscription, which names what is in
        force here."""
        if error is not None:
            log.warning("acknowledgement_lost", reason=error.message)

    def _report(self) -> Report:
        parts, environment = self._report_parts(), self._environment
        return Report(
            service=cast(Service, environment.service),
            instance=environment.instance,
            index=environment.index,
            role=self._role,
            position=UNSET if self._on_disk is None else self._on_disk,
            ready=parts.ready,
            infra=environment.infra,
            restarts=environment.restarts,
            models=parts.models,
            views=parts.views,
        )


def _last_good_file(environment: Environment) -> LastGoodFile:
    """Runtimes have a file each, the other services one that predecessor and successor share."""
    stem = environment.service
    if stem == "model_runtime":
        stem = f"{stem}.{environment.index}"
    return LastGoodFile(environment.home / ".mortise" / "policy", stem, environment.instance)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _surface(task: asyncio.Task[None]) -> None:
    """A defect in one of our tasks, or in a callback of the service, ends the process: one that
    follows no policies must not look alive."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise AssertionError(f"{task.get_name()} failed; nothing follows the policies") from error
