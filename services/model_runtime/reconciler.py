"""Keeps what this runtime holds equal to what the deployments name.

Packs are loaded one after another on the loader thread, beside serving, then primed where they
will compute; a version flips in on the loop. What is no longer needed is closed there too.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from contracts.errors import MeshError
from contracts.policies import PolicySet
from services.model_runtime.budget import choose_evictions, used_bytes
from services.model_runtime.config import linger_s, unload_spare_s
from services.model_runtime.deployments import routed_versions, wanted_versions
from services.model_runtime.generations import Generation, Generations, Key, LoadTimes
from services.model_runtime.model import Model
from services.model_runtime.worker import Raised, Worker
from shared import logs
from shared.clock import Clock

log = logs.get("services.model_runtime")


class Loads(Protocol):
    """What loads a pack (`loading.Loader`)."""

    def predict(self, digest: str) -> int:
        """See `Loader.predict`."""
        ...

    def load(self, name: str, digest: str, loaded_bytes: int) -> tuple[Model, LoadTimes]:
        """See `Loader.load`."""
        ...


class Reconciler:
    """Belongs to the loop's thread. `on_change` is called after each load that ended."""

    def __init__(
        self,
        generations: Generations[Model],
        loader: Loads,
        loader_thread: Worker,
        compute_thread: Worker,
        clock: Clock,
        *,
        index: int,
        budget_bytes: int,
        on_change: Callable[[LoadTimes], None],
    ) -> None:
        self.settled = asyncio.Event()
        self._generations = generations
        self._loader = loader
        self._loader_thread = loader_thread
        self._compute_thread = compute_thread
        self._is_loading = False
        self._clock = clock
        self._index = index
        self._budget_bytes = budget_bytes
        self._on_change = on_change
        self._routed: frozenset[Key] = frozenset()
        self._waiting: deque[Generation[Model]] = deque()

    def check(self, policies: PolicySet) -> str | None:
        """Why this set cannot be followed, or None."""
        try:
            wanted_versions(policies, self._index)
        except ValueError as error:
            return str(error)
        return None

    def activate(self, policies: PolicySet) -> None:
        """Make this set the goal. A version that failed before is tried again."""
        wanted = wanted_versions(policies, self._index)
        self._routed = routed_versions(policies)
        self._waiting.extend(self._generations.reconcile(wanted, self._clock.monotonic()))
        self._load_next()
        asyncio.get_running_loop().call_later(linger_s, self.collect)

    def collect(self) -> None:
        """Close what nobody names, uses or may still ask for."""
        for generation in self._generations.collect(self._clock.monotonic()):
            self._close(generation, "nobody names it any more")

    def relieve(self, reason: str) -> None:
        """Memory is short: close every idle version now; where there is none, the one that is
        deployed but reached by no route and was used least recently."""
        idle = self._generations.idle()
        for held in idle:
            self._generations.evict(held)
            self._close(held, reason)
        before_s = self._clock.monotonic() - unload_spare_s
        unrouted = [] if idle else self._generations.unrouted(self._routed, before_s)
        if unrouted:
            held = unrouted[0]
            self._generations.unload(
                held,
                f"unloaded, no route reaches it and memory is short ({reason}); the next commit"
                " loads it again",
            )
            self._close(held, reason)
        if idle or unrouted:
            self._on_change(LoadTimes())

    def _close(self, generation: Generation[Model], reason: str) -> None:
        assert generation.model is not None, "only loaded ones are closed"
        generation.model.close()
        generation.model = None
        self._record(generation).info("model_closed", reason=reason)

    def _load_next(self) -> None:
        """One at a time, so that each is admitted beside the weights of those before it."""
        if self._is_loading:
            return
        while self._waiting:
            generation = self._waiting.popleft()
            if generation.is_awaited:
                self._load(generation)
                return
            self._generations.failed(generation, "no longer deployed")
        self.settled.set()

    def _load(self, generation: Generation[Model]) -> None:
        self._is_loading = True
        self._loader_thread.submit(
            lambda: self._loader.predict(generation.digest),
            lambda result: self._predicted(generation, result),
        )

    def _predicted(self, generation: Generation[Model], result: int | Raised) -> None:
        """Load it where it fits into the budget, without as many idle versions as it takes."""
        if isinstance(result, Raised):
            self._failed(generation, result.error)
            return
        self.collect()
        free = self._budget_bytes - used_bytes(self._generations.held())
        try:
            evicted = choose_evictions(result, free, self._generations.idle())
        except MeshError as error:
            self._failed(generation, error)
            return
        for held in evicted:
            self._generations.evict(held)
            self._close(held, f"{generation.name} {generation.version} needs its memory")
        generation.needed_bytes = result
        loaded_bytes = self._generations.weights_bytes()
        self._loader_thread.submit(
            lambda: self._loader.load(generation.name, generation.digest, loaded_bytes),
            lambda result: self._loaded(generation, result),
        )

    def _loaded(
        self, generation: Generation[Model], result: tuple[Model, LoadTimes] | Raised
    ) -> None:
        if isinstance(result, Raised):
            self._failed(generation, result.error)
            return
        model, times = result
        self._compute_thread.submit(
            model.prime, lambda primed: self._primed(generation, model, times, primed)
        )

    def _primed(
        self, generation: Generation[Model], model: Model, times: LoadTimes, primed: Raised | None
    ) -> None:
        if isinstance(primed, Raised):
            model.close()
            self._failed(generation, primed.error)
            return
        if model.is_inline(1):
            model.prime()
        generation.used_s = self._clock.monotonic()
        self._generations.loaded(generation, model, times)
        self._record(generation).info(
            "model_ready", warm_us=times.warm_us, verify_us=times.verify_us
        )
        self._ended(times)

    def _failed(self, generation: Generation[Model], error: Exception) -> None:
        reason = str(error) if isinstance(error, MeshError) else repr(error)[:300]
        self._generations.failed(generation, reason)
        self._record(generation).error("model_failed", reason=reason, exc_info=error)
        self._ended(LoadTimes())

    def _ended(self, times: LoadTimes) -> None:
        self._is_loading = False
        self.collect()
        self._on_change(times)
        self._load_next()

    def _record(self, generation: Generation[Model]) -> FilteringBoundLogger:
        return log.bind(
            model_name=generation.name, model_version=generation.version, digest=generation.digest
        )
