"""Carries pushes to the subscribed instances and their answers back. Decides nothing itself: the
table of a push is in `push`, who is required in `instances`.

On the loop's thread only. One push at a time; the caller holds the commit lock.
"""

import asyncio
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass
from typing import Literal

import msgspec

from contracts.distribution import PolicyItem, Position, Reported, Subscribed
from contracts.errors import MeshError
from contracts.policies import PolicySet
from contracts.types import UNSET, Empty, UnsetType
from services.control_plane.chain import GENESIS
from services.control_plane.counters import Counters
from services.control_plane.instances import Instances
from services.control_plane.push import Push
from shared import logs
from shared.clock import Clock
from shared.policy_steps import compare
from shared.rpc.server import DEFERRED, Call
from shared.wire.codec import encode

log = logs.get("services.control_plane.distributor")

_absent_retry_ms = 500
"""When an instance is missing its successor comes, or it turns stale and is not required."""
not_required_after_s = 0.1
"""How long after it is in force standbys hear of a set: their work, as much as that of those who
serve, would compete with it for the processors. One that is promoted meanwhile reads the set from
the disk that it takes over."""
NOWHERE = Position(epoch=0, sequence=0, hash=GENESIS)
"""Older than every place in a log: what instances are told while the log cannot be used."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest policy set and its place in the log."""

    position: Position
    policies: PolicySet


class Distributor:
    """`head` is what every instance is to have in force; None while the log is not usable.

    `on_ahead(position)` is called when an instance knows more than this log.
    """

    def __init__(self, clock: Clock, counters: Counters) -> None:
        self.head: Head | None = None
        self.instances = Instances()
        self.changed = asyncio.Event()
        """Set whenever an instance said something; who waits clears it."""
        self.on_ahead: Callable[[Position], None] | None = None
        self._clock = clock
        self._counters = counters
        self._calls: dict[str, Call] = {}
        self._push: Push | None = None

    # --- handlers

    def subscribe(self, call: Call) -> object:
        """A stream of items until the connection ends; the first one is the version in force."""
        name = call.body.instance
        replaced = self._calls.pop(name, None)
        if replaced is not None:
            replaced.reply(Subscribed(reason="subscribed again"))
        self._calls[name] = call
        call.on_cancel = lambda: self._left(name, call)
        self.instances.subscribed(call.body)
        self._notice(call.body.position)
        if self.head is not None:
            self._send(name, _carrying("activate", self.head))
        return DEFERRED

    def acknowledge(self, call: Call) -> Empty:
        """An instance answered a prepare or an activate."""
        self.instances.acknowledged(call.body)
        if call.body.state == "invalid":
            log.warning(
                "policy_refused",
                instance_name=call.body.instance,
                sequence=call.body.position.sequence,
                reason=call.body.reason,
            )
        if self._push is not None:
            self._push.acknowledged(call.body)
        self.changed.set()
        return Empty()

    def report(self, call: Call) -> Reported:
        """A heartbeat; the answer tells a lagging instance that it lags."""
        self.instances.reported(call.body, self._clock.monotonic())
        if call.body.leaving and self._push is not None:
            self._push.excused(call.body.instance)
        self._notice(call.body.position)
        self.changed.set()
        return Reported(position=NOWHERE if self.head is None else self.head.position)

    # --- pushes

    async def push(
        self, candidate: Head, append: Callable[[], Awaitable[None]], trace_id: str = ""
    ) -> Push:
        """Bring the candidate everywhere, or nowhere: POLICY_REJECTED names who said no.

        Standbys and stale instances get it a while after it is in force: they must slow down
        neither a push nor what is served meanwhile.
        `append` puts the commit on the disk; what it raises ends the push, nothing is active then.
        """
        now_s = self._clock.monotonic()
        push = self._push = Push(candidate.position, self.instances.required(now_s), now_s)
        before = dict(self._calls)
        try:
            for name in push.required - self._calls.keys():
                push.left(name)
            if not push.is_over:
                self._send_all(push.required, _carrying("prepare", candidate, trace_id))
            await self._settle(push, "preparing")
            prepared_s = self._clock.monotonic()
            if push.phase == "appending":
                try:
                    await append()
                except BaseException:
                    push.not_appended("the commit was not written")
                    raise
                self.head = candidate
                appended_s = self._clock.monotonic()
                push.joined(self._promoted_since(before, appended_s))
                push.appended(appended_s)
                self._activate(candidate, push, trace_id)
                await self._settle(push, "activating")
                others = {name: self._calls[name] for name in self._calls.keys() - push.required}
                if push.fenced:  # its successor would find nothing on the disk
                    self._tell(candidate, others, trace_id)
                else:
                    asyncio.get_running_loop().call_later(
                        not_required_after_s, self._tell, candidate, others, trace_id
                    )
                self._counters.pushed(
                    prepare_s=prepared_s - now_s,
                    append_s=appended_s - prepared_s,
                    activate_s=self._clock.monotonic() - appended_s,
                )
        finally:
            self._push = None
            if push.phase == "rejected":
                self._counters.rejected()
                self._send_all(push.required, _naming("abandon", candidate, trace_id))
        if push.phase == "rejected":
            raise MeshError(
                "POLICY_REJECTED",
                f"version {candidate.policies.version} is active nowhere: {push.rejection()}",
                retry_after_ms=None if push.was_refused else _absent_retry_ms,
                details={"instances": ", ".join(sorted(push.reasons))},
            )
        return push

    def renew(self, head: Head) -> None:
        """Put a head in force again under its new epoch; forward only, like any activation."""
        self.head = head
        self._send_all(self._calls.keys(), _carrying("activate", head))

    async def wait_changed(self, timeout_s: float) -> None:
        """Until an instance says something, or so long."""
        self.changed.clear()
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self.changed.wait()
        except TimeoutError:
            return

    def close(self) -> None:
        """End every subscription."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.reply(Subscribed(reason="the control plane stops"))

    async def _settle(self, push: Push, phase: str) -> None:
        """Wait until the push leaves the phase; its deadline bounds this."""
        while push.phase == phase:
            await self.wait_changed(push.deadline_s - self._clock.monotonic())
            push.tick(self._clock.monotonic())

    def _activate(self, candidate: Head, push: Push, trace_id: str) -> None:
        """Whoever stored the candidate is told its name; one that lost it gets the whole set."""
        stored = push.required & push.valid
        self._send_all(stored, _naming("activate", candidate, trace_id))
        self._send_all(push.required - stored, _carrying("activate", candidate, trace_id))

    def _promoted_since(self, before: dict[str, Call], now_s: float) -> set[str]:
        """Who serves now, or subscribed again as only a promoted one does, and was told of the
        set before this one."""
        serving = self.instances.required(now_s) & self._calls.keys()
        again = {name for name, call in before.items() if self._calls.get(name, call) is not call}
        return serving | again

    def _tell(self, candidate: Head, others: dict[str, Call], trace_id: str) -> None:
        """Those of the subscriptions that still are; a later push tells them of itself."""
        if self.head is candidate:
            names = {name for name, call in others.items() if self._calls.get(name) is call}
            self._send_all(names, _carrying("activate", candidate, trace_id))

    def _send_all(self, names: Set[str], item: "_Item") -> None:
        for name in names & self._calls.keys():
            self._send(name, item)

    def _send(self, name: str, item: "_Item") -> None:
        self._calls[name].stream(item.encoded)
        if item.action != "abandon":
            self.instances.sent(name, item.position)

    def _left(self, name: str, call: Call) -> None:
        if self._calls.get(name) is call:
            del self._calls[name]
            self.instances.left(name)
            if self._push is not None:
                self._push.left(name)
            self.changed.set()

    def _notice(self, position: Position | UnsetType) -> None:
        if position is not UNSET and self.head is not None:
            order = compare(position, self.head.position)
            if order in ("newer", "conflict") and self.on_ahead is not None:
                self.on_ahead(position)


class _Item:
    """A policy item, encoded once for everybody."""

    __slots__ = ("action", "encoded", "position")

    def __init__(self, item: PolicyItem) -> None:
        self.action, self.position = item.action, item.position
        self.encoded = msgspec.Raw(encode(item))


def _carrying(action: Literal["prepare", "activate"], head: Head, trace_id: str = "") -> _Item:
    """An item with the whole set."""
    return _Item(
        PolicyItem(
            action=action,
            position=head.position,
            policies=head.policies,
            trace_id=trace_id or UNSET,
        )
    )


def _naming(action: Literal["activate", "abandon"], head: Head, trace_id: str) -> _Item:
    """An item for those who hold the set."""
    return _Item(PolicyItem(action=action, position=head.position, trace_id=trace_id or UNSET))
