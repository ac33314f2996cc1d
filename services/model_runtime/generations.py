"""Which model versions this runtime holds. Pure: loads nothing, reads no clock.

States: loading → ready or failed. A version that is to be replaced stays in service until the new
one is ready (load aside, flip); one that nobody names any more serves on for `linger_s` and until
its last reference is gone (drain). A failed load changes nothing that serves.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from contracts.errors import MeshError
from contracts.pack import LoadedModel
from contracts.types import UNSET
from services.model_runtime.config import linger_s

ModelT = TypeVar("ModelT")
Key = tuple[str, str]
"""(model name, version)."""


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """What a load took, in microseconds; the bytes of its weights, and by how many private memory
    grew meanwhile."""

    verify_us: int = 0
    map_us: int = 0
    warm_us: int = 0
    bytes: int = 0
    private_bytes: int = 0


@dataclass(slots=True, eq=False)
class Generation(Generic[ModelT]):
    """One version from one pack. `model` is there when it is ready; `needed_bytes` is what it takes
    of the memory budget, from before its load until it is closed or has failed; `used_s` is when
    its latest batch came, its load at first."""

    name: str
    version: str
    digest: str
    state: Literal["loading", "ready", "failed"] = "loading"
    model: ModelT | None = None
    reason: str = ""
    times: LoadTimes = field(default_factory=LoadTimes)
    references: int = 0
    used_s: float = 0.0
    needed_bytes: int = 0
    unwanted_since_s: float | None = None

    @property
    def key(self) -> Key:
        """What a batch names it by."""
        return (self.name, self.version)

    @property
    def is_awaited(self) -> bool:
        """It is wanted and not there yet."""
        return self.state == "loading" and self.unwanted_since_s is None

    def row(self) -> LoadedModel:
        """As `models` and the reports tell it."""
        return LoadedModel(
            name=self.name,
            version=self.version,
            digest=self.digest,
            state=self.state,
            reason=self.reason or UNSET,
            bytes=self.times.bytes,
            verify_us=self.times.verify_us,
            map_us=self.times.map_us,
            warm_us=self.times.warm_us,
            references=self.references,
        )


class Generations(Generic[ModelT]):
    """The versions of one runtime. One thread (the loop's) uses it."""

    def __init__(self) -> None:
        self._held: list[Generation[ModelT]] = []
        self._serving: dict[Key, Generation[ModelT]] = {}

    def reconcile(self, wanted: Mapping[Key, str], now_s: float) -> list[Generation[ModelT]]:
        """Take `wanted` (version → pack digest) as the goal; returns what has to be loaded.

        A failed version that is still wanted is loaded again.
        """
        self._held = [held for held in self._held if held.state != "failed"]
        for held in self._held:
            if wanted.get(held.key) == held.digest:
                held.unwanted_since_s = None
            elif held.unwanted_since_s is None:
                held.unwanted_since_s = now_s
        present = {(held.key, held.digest) for held in self._held}
        new = [
            Generation[ModelT](key[0], key[1], digest)
            for key, digest in wanted.items()
            if (key, digest) not in present
        ]
        self._held += new
        return new

    def loaded(self, generation: Generation[ModelT], model: ModelT, times: LoadTimes) -> None:
        """The load is done: from now on this generation answers for its version."""
        assert generation.state == "loading", "a generation is loaded once"
        generation.state, generation.model, generation.times = "ready", model, times
        replaced = self._serving.get(generation.key)
        if replaced is None or generation.unwanted_since_s is None:
            self._serving[generation.key] = generation

    def failed(self, generation: Generation[ModelT], reason: str) -> None:
        """The load failed; what served goes on."""
        assert generation.state == "loading", "a load fails once"
        generation.state, generation.reason, generation.needed_bytes = "failed", reason, 0

    def serving(self, name: str, version: str) -> Generation[ModelT] | None:
        """The generation that serves this version now, for use within this turn of the loop."""
        return self._serving.get((name, version))

    def acquire(self, name: str, version: str) -> Generation[ModelT]:
        """The generation that serves this version, with one more reference.

        Raises MeshError MODEL_NOT_READY (it loads, or its load failed) or MODEL_UNKNOWN.
        """
        generation = self._serving.get((name, version))
        if generation is None:
            raise self._absent(name, version)
        generation.references += 1
        return generation

    def release(self, generation: Generation[ModelT]) -> None:
        """Give one reference back."""
        assert generation.references > 0, "released more often than acquired"
        generation.references -= 1

    def collect(self, now_s: float) -> list[Generation[ModelT]]:
        """Forget what nobody names, uses or may still ask for; returns it, to be closed."""
        gone = [held for held in self._held if self._is_over(held, now_s)]
        for held in gone:
            self._forget(held)
        return [held for held in gone if held.model is not None]

    def held(self) -> list[Generation[ModelT]]:
        """Every version, in whatever state."""
        return list(self._held)

    def idle(self) -> list[Generation[ModelT]]:
        """Ready versions that nobody names or uses, those first that were let go first."""
        idle = [
            held
            for held in self._held
            if held.state == "ready" and not held.references and held.unwanted_since_s is not None
        ]
        return sorted(idle, key=lambda held: held.unwanted_since_s or 0.0)

    def unrouted(self, routed: Container[Key], before_s: float) -> list[Generation[ModelT]]:
        """Ready versions that are deployed but reached by no route, and that nobody has used since
        `before_s`, the least recently used first."""
        found = [
            held
            for held in self.wanted()
            if held.state == "ready"
            and not held.references
            and held.key not in routed
            and held.used_s < before_s
        ]
        return sorted(found, key=lambda held: held.used_s)

    def unload(self, generation: Generation[ModelT], reason: str) -> None:
        """A version in which nobody is interested now makes room: from here on it is as one whose
        load failed, which the next policy set tries again. It is closed by the caller."""
        assert generation.state == "ready", "only what was loaded is unloaded"
        assert not generation.references, "a version in use stays"
        if self._serving.get(generation.key) is generation:
            del self._serving[generation.key]
        generation.state, generation.reason, generation.needed_bytes = "failed", reason, 0

    def evict(self, generation: Generation[ModelT]) -> None:
        """Forget an idle version before its time; it is closed by the caller."""
        assert not generation.references, "a version in use stays"
        self._forget(generation)

    def rows(self) -> list[LoadedModel]:
        """Every version held, in the order of their first mention."""
        return [held.row() for held in self._held]

    def wanted(self) -> list[Generation[ModelT]]:
        """The goal's versions, in whatever state."""
        return [held for held in self._held if held.unwanted_since_s is None]

    def weights_bytes(self) -> int:
        """Bytes of weights of every ready version."""
        return sum(held.times.bytes for held in self._held if held.state == "ready")

    def measured_bytes(self) -> int:
        """What loading the ready versions took."""
        ready = [held.times for held in self._held if held.state == "ready"]
        return sum(times.bytes + times.private_bytes for times in ready)

    def _forget(self, held: Generation[ModelT]) -> None:
        self._held.remove(held)
        if self._serving.get(held.key) is held:
            del self._serving[held.key]

    def _is_over(self, held: Generation[ModelT], now_s: float) -> bool:
        if held.unwanted_since_s is None or held.references or held.state == "loading":
            return False
        is_replaced = self._serving.get(held.key) is not held
        return is_replaced or now_s - held.unwanted_since_s >= linger_s

    def _absent(self, name: str, version: str) -> MeshError:
        what = f"{name[:80]} version {version[:20]}"
        for held in self._held:
            if held.key == (name, version) and held.state == "loading":
                return MeshError("MODEL_NOT_READY", f"{what} is loading", retry_after_ms=100)
            if held.key == (name, version):
                return MeshError(
                    "MODEL_NOT_READY", f"{what} failed to load: {held.reason}", retry_after_ms=5_000
                )
        return MeshError("MODEL_UNKNOWN", f"{what} is not deployed on this runtime")
