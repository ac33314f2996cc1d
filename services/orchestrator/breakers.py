"""The breakers of all deployed versions: what their requests' ends mean, and who hears of it.

What counts against a version: its runtime failed or vanished, the answer broke its contract, or it
kept the request longer than it should. What never counts: what the client did (bad input, a cancel
before its deadline, a deadline that nobody could keep), what waited in the queue, what the fabric
did. What is out survives a restart (`breaker_file`); what led there is learnt again.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple

from contracts.errors import MeshError
from contracts.policies import BreakerPolicy, BreakerSpec, Policy, SlaPolicy, SlaSpec
from contracts.types import Scalar
from services.orchestrator.breaker import Breaker, State
from services.orchestrator.config import (
    breaker_retry_ms_min,
    early_cancel_s,
    slow_factor,
    slow_s_min,
    usual_share,
)
from services.orchestrator.observe import Observed
from services.orchestrator.plan import Key, ModelPlan
from services.orchestrator.request import Where, Work
from shared import logs
from shared.clock import Clock

log = logs.get("services.orchestrator.breakers")

_AT_THE_RUNTIME = frozenset({"UNAVAILABLE", "INTERNAL"})
"""Count only while the request was there: elsewhere they are others' errors."""
_TIMEOUTS = frozenset({"DEADLINE_EXCEEDED", "CANCELLED"})
"""A client watches its deadline too, and its cancel may arrive before ours has passed."""
_OF_THE_MODEL = frozenset({"FORWARD_FAILED", "OUTPUT_INVALID", "MEMORY_EXHAUSTED"})
EVERY = "*"


class Out(NamedTuple):
    """A version that is out: its key, when it reopens (wall clock), and why it opened."""

    name: str
    version: str
    digest: str
    reopens_wall_s: float
    reason: str


def _nobody() -> None:
    """Nobody hears of transitions."""


class Watched:
    """A version's breaker, and how long its batches usually take. `slow_s` is the longest that a
    batch may be out before a passed deadline is the version's fault."""

    def __init__(self, plan: ModelPlan, breaker: Breaker, slow_s: float) -> None:
        self.plan = plan
        self.breaker = breaker
        self.slow_s = slow_s
        self.usual_s = 0.0

    def measure(self, away_s: float) -> None:
        """A batch came back after so long."""
        known = self.usual_s
        self.usual_s = away_s if not known else known + usual_share * (away_s - known)

    def is_slow(self, away_s: float) -> bool:
        """Whether this is longer than the version may take: what was promised, or a multiple of
        what it usually takes. A deadline that passes earlier was too short."""
        usual_s = slow_factor * self.usual_s if self.usual_s else self.slow_s
        return away_s >= max(slow_s_min, min(self.slow_s, usual_s))


class Breakers:
    """On the loop's thread only. `shut` has the versions whose breakers are not closed, so that
    the hot path asks one empty map."""

    def __init__(self, clock: Clock, observed: Observed, random: Random) -> None:
        self.shut: dict[Key, Watched] = {}
        self.fallbacks = 0
        self.on_change: Callable[[], None] = _nobody
        self._clock = clock
        self._observed = observed
        self._random = random
        self._watched: dict[Key, Watched] = {}
        self._of_plan: dict[ModelPlan, Watched] = {}
        self._opened = 0

    def apply(self, policies: Iterable[Policy], deployed: Iterable[ModelPlan]) -> None:
        """The thresholds from now on; versions that stay deployed keep their state."""
        specs: dict[str, BreakerSpec] = {}
        promises: dict[str, float] = {}
        for policy in policies:
            if isinstance(policy, BreakerPolicy):
                specs[policy.name] = policy.spec
            elif isinstance(policy, SlaPolicy):
                promises[policy.name] = policy.spec.p99_ms / 1_000
        usual_promise_s = promises.get(EVERY, SlaSpec().p99_ms / 1_000)
        before, self._watched = self._watched, {}
        for plan in deployed:
            spec = specs.get(plan.name, BreakerSpec())
            slow_s = promises.get(plan.name, usual_promise_s)
            watched = before.get(plan.key)
            if watched is None:
                watched = Watched(plan, Breaker(spec, self._random), slow_s)
            watched.breaker.apply(spec)
            watched.plan, watched.slow_s = plan, slow_s
            self._watched[plan.key] = watched
        self._of_plan = {row.plan: row for row in self._watched.values()}
        self.shut = {key: row for key, row in self.shut.items() if key in self._watched}

    # Requests that go.

    def admits(self, plan: ModelPlan) -> bool:
        """Whether a request may reach this version now."""
        watched = self.shut.get(plan.key)
        if watched is None:
            return True
        before = watched.breaker.state
        is_admitted = watched.breaker.admits(self._clock.monotonic())
        self._changed(watched, before)
        return is_admitted

    def admitted(self, work: Work) -> None:
        """The request goes to a version that admitted it: as a probe, unless it is closed."""
        watched = self.shut.get(work.plan.key)
        if watched is not None and watched.breaker.state is State.HALF_OPEN:
            watched.breaker.take_probe()
            work.probes = watched.breaker

    def refusal(self, plan: ModelPlan) -> MeshError:
        """What a request is told that cannot go elsewhere."""
        watched = self.shut[plan.key]
        breaker = watched.breaker
        wait_s = breaker.retry_after_s(self._clock.monotonic())
        return MeshError(
            "MODEL_NOT_READY",
            f"{plan.name} {plan.version}: its breaker is {breaker.state.value}: {breaker.reason};"
            " no fallback can answer",
            retry_after_ms=max(breaker_retry_ms_min, math.ceil(wait_s * 1_000)),
            details={"breaker": breaker.state.value},
        )

    def fell_back(self, model: str, plan: ModelPlan) -> None:
        """A request for `model` goes to its declared fallback."""
        self.fallbacks += 1
        self._observed.fell_back(model, plan)

    # Verdicts.

    def answered(self, works: Sequence[Work], answers: Sequence[object]) -> None:
        """Works of one batch, none of them ended yet, and what they will be told. The errors among
        the answers come through `failed`."""
        first = works[0]
        watched = self._of_plan.get(first.plan)
        if watched is None:
            return
        batch = first.parts[-1].batch
        if batch is not None:
            watched.measure(batch.answered_s - batch.sent_s)
            now_s = batch.answered_s
        else:
            now_s = self._clock.monotonic()
        breaker = watched.breaker
        if breaker.state is State.CLOSED and not breaker.is_alert:
            good = 0
            for answer in answers:
                if not isinstance(answer, MeshError):
                    good += 1
            breaker.answered(now_s, good)
            return
        for work, answer in zip(works, answers, strict=True):
            if not isinstance(answer, MeshError) and work.probes is None:
                breaker.answered(now_s, 1, work.body.tenant_id)

    def failed(self, work: Work, error: MeshError) -> None:
        """An admitted request ends with this error, its parts being where they were."""
        watched = self._watched.get(work.plan.key)
        if watched is None or not self._is_to_blame(watched, work, error):
            return
        breaker, before = watched.breaker, watched.breaker.state
        now_s = self._clock.monotonic()
        if work.probes is breaker:
            work.probes = None
            breaker.probe_failed(now_s)
        elif work.probes is None:
            is_timeout = error.name in _TIMEOUTS
            breaker.failed(now_s, work.body.tenant_id, is_timeout=is_timeout)
        self._changed(watched, before)

    def probe_ended(self, work: Work, *, is_answered: bool) -> None:
        """A probe ended with no error that counts."""
        breaker, work.probes = work.probes, None
        assert breaker is not None, "it was a probe"
        watched = self._watched.get(work.plan.key)
        if watched is None or watched.breaker is not breaker:
            return
        before = breaker.state
        if is_answered:
            breaker.probe_answered(self._clock.monotonic())
        else:
            breaker.probe_unjudged()
        self._changed(watched, before)

    def _is_to_blame(self, watched: Watched, work: Work, error: MeshError) -> bool:
        """Whether the version is, for this end of a request."""
        name, places = error.name, {part.where for part in work.parts}
        if Where.FEATURES in places:
            return False
        if name in _OF_THE_MODEL:
            return True
        if Where.EXECUTE not in places:
            return False
        if name not in _TIMEOUTS:
            return name in _AT_THE_RUNTIME
        now_s = self._clock.monotonic()
        if name == "CANCELLED" and now_s < work.deadline_s - early_cancel_s:
            return False
        # However late a busy loop comes to look, the request gave the runtime no longer than this.
        ends_s = min(now_s, work.deadline_s)
        batches = [part.batch for part in work.parts if part.where is Where.EXECUTE]
        return any(
            batch is not None and watched.is_slow(ends_s - batch.sent_s) for batch in batches
        )

    def _changed(self, watched: Watched, before: State) -> None:
        """Tell of a transition, if there was one."""
        breaker, plan = watched.breaker, watched.plan
        state = breaker.state
        if state is before:
            return
        fields = {"model_name": plan.name, "model_version": plan.version, "reason": breaker.reason}
        if state is State.CLOSED:
            self.shut.pop(plan.key, None)
            log.info("breaker_closed", **fields)
        elif state is State.HALF_OPEN:
            log.info("breaker_half_open", **fields)
        else:
            self.shut[plan.key] = watched
            self._opened += 1
            log.warning("breaker_opened", **fields)
        self._observed.breaker(plan, state.value)
        self.on_change()

    # Over a restart.

    def out(self) -> list[Out]:
        """The versions that are out; one that is half-open may be tried at once."""
        ahead_s = self._clock.wall() - self._clock.monotonic()
        return [
            Out(*key, row.breaker.reopens_s + ahead_s, row.breaker.reason)
            for key, row in self.shut.items()
        ]

    def restore(self, found: Iterable[Out]) -> None:
        """Open the breakers that another process left open; versions that are gone are ignored."""
        now_s = self._clock.monotonic()
        ahead_s = self._clock.wall() - now_s
        for each in found:
            watched = self._watched.get((each.name, each.version, each.digest))
            if watched is not None and watched.breaker.state is State.CLOSED:
                watched.breaker.restore(now_s, each.reopens_wall_s - ahead_s, each.reason)
                self._changed(watched, State.CLOSED)

    # Seeing it.

    def reasons(self) -> list[str]:
        """What health says of the versions that are out."""
        return [
            f"{row.plan.name} {row.plan.version}: breaker {row.breaker.state.value}:"
            f" {row.breaker.reason}"
            for row in self.shut.values()
        ]

    def statistics(self) -> dict[str, Scalar]:
        """Counts, and the state of each version that is out."""
        counts: dict[str, Scalar] = {
            "breakers_out": len(self.shut),
            "breakers_opened": self._opened,
            "fallback_requests": self.fallbacks,
        }
        for row in self.shut.values():
            counts[f"breaker.{row.plan.name}.{row.plan.version}"] = row.breaker.state.value
        return counts
