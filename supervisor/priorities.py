"""Applies the priority policy's CPU weights to the runtimes, and tells what was applied or why not.

Down is always permitted. Up again is not for an ordinary user: then the runtime is replaced, make
before break, because a new process begins at the ordinary level.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence

from shared import logs
from shared.rpc.call import new_trace_id
from supervisor import cpu_scheduling
from supervisor.cpu_scheduling import Cgroups, NotPermitted
from supervisor.cpu_weights import USUAL, Treatment, treatment, weights
from supervisor.in_force import InForce
from supervisor.slot import Slot

log = logs.get("supervisor.priorities")
RUNTIME = "model_runtime"
WITHOUT_EFFECT = (
    f"cpu_weights have no effect: every runtime has {USUAL}, as any process; a runtime has a lower"
    " one when reserved_replicas keeps class 1 off it"
)
Replace = Callable[[Slot, str], Awaitable[str | None]]


class Priorities:
    """Looks at every active runtime once a second; on the loop's thread only."""

    def __init__(
        self, slots: Sequence[Slot], in_force: InForce, cgroups: Cgroups, replace: Replace
    ) -> None:
        self._slots, self._in_force, self._replace = slots, in_force, replace
        self._cgroups = cgroups
        self._words: dict[str, str] = {}
        self._ordinary = cpu_scheduling.current(os.getpid())
        self._replaced: dict[str, int] = {}
        self._replacing: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Give each runtime the weight that is in force, where it has another."""
        runtimes = [slot for slot in self._slots if slot.spec.service == RUNTIME]
        replicas = max((slot.spec.index + 1 for slot in runtimes), default=0)
        spec = self._in_force.priority
        found = weights(self._in_force.policies, spec, replicas)
        is_without_effect = bool(spec.cpu_weights) and set(found) == {USUAL}
        present = set()
        for slot in runtimes:
            active = slot.active
            if active is None or active.state != "ready" or not active.accepting:
                continue
            present.add(active.identity)
            if self._words.get(active.identity, WITHOUT_EFFECT) == WITHOUT_EFFECT:
                self._words.pop(active.identity, None)  # it was never weighed
                if is_without_effect:
                    self._words[active.identity] = WITHOUT_EFFECT
                    continue
            try:
                self._give(slot, active.identity, active.pid, found[slot.spec.index])
            except ProcessLookupError:
                continue  # its exit is on the way
        for identity in self._words.keys() - present:
            del self._words[identity]

    def words(self, slot: Slot) -> str:
        """What the active process of a place was given, or why not; "" where nothing asks."""
        return "" if slot.active is None else self._words.get(slot.active.identity, "")

    def close(self) -> None:
        """Give nobody anything any more."""
        if self._replacing is not None:
            self._replacing.cancel()
        self._cgroups.close()

    def _give(self, slot: Slot, identity: str, pid: int, weight: int) -> None:
        was_told = self._words.get(identity)
        if weight == USUAL and was_told is None:
            return  # nobody ever asked for anything: no look at its threads
        if self._cgroups.is_there:
            self._give_cgroup(slot, identity, pid, weight)
            return
        wanted = treatment(weight, self._ordinary.nice)
        try:
            cpu_scheduling.apply(pid, wanted)
        except NotPermitted as error:
            self._raise_by_replacing(slot, identity, pid, weight, wanted, str(error))
            return
        self._tell(slot, identity, pid, f"cpu weight {weight}: {wanted} ({self._cgroups.reason})")

    def _give_cgroup(self, slot: Slot, identity: str, pid: int, weight: int) -> None:
        word = f"cpu weight {weight}: cpu.weight of its cgroup"
        if self._words.get(identity) == word:
            return
        try:
            self._cgroups.apply(f"{RUNTIME}.{slot.spec.index}", pid, weight)
        except NotPermitted as error:
            word = f"cpu weight {weight} is not given: {error}"
        self._tell(slot, identity, pid, word)

    def _raise_by_replacing(
        self, slot: Slot, identity: str, pid: int, weight: int, wanted: Treatment, reason: str
    ) -> None:
        """A new process is ordinary; what is above that stays out of reach. Once for each place
        and policy version, so that nothing is replaced for ever."""
        word = f"cpu weight {weight} is not given: {reason}"
        version = self._in_force.policies.version
        if wanted.is_above(self._ordinary) or self._replaced.get(slot.spec.label) == version:
            self._tell(slot, identity, pid, word)
        elif self._replacing is None or self._replacing.done():
            self._replaced[slot.spec.label] = version
            self._tell(slot, identity, pid, f"{word}; it is replaced")
            self._replacing = asyncio.get_running_loop().create_task(self._renew(slot))

    async def _renew(self, slot: Slot) -> None:
        trace_id = new_trace_id()
        failure = await self._replace(slot, trace_id)
        if failure is not None:
            log.error("cpu_weight_failed", trace_id=trace_id, child=slot.spec.label, reason=failure)

    def _tell(self, slot: Slot, identity: str, pid: int, word: str) -> None:
        if self._words.get(identity) != word:
            self._words[identity] = word
            log.info("cpu_weight", child=slot.spec.label, pid=pid, applied=word)
