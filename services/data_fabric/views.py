"""View versions that the fabric holds: which are wanted, in which state, and which one answers.

Invariant: a version that is deployed answers with the text of its pack, whatever the home's file
of that name says. Pure bookkeeping: loads nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from contracts.distribution import ViewState
from contracts.errors import MeshError
from contracts.features import ViewRow
from contracts.types import UNSET, UnsetType
from services.data_fabric.config import views_max
from services.data_fabric.loading import LoadedView, Signature
from services.data_fabric.serving import ServedView


@dataclass(frozen=True, slots=True)
class Wanted:
    """A view version by its text; `digest` is the text's. `is_deployed` when a pack brings it."""

    name: str
    version: str
    digest: str
    text: str
    is_deployed: bool


@dataclass(slots=True)
class Held:
    """A wanted view and how far it is. A failed reload keeps what was served before. `tried` is
    how the home's sources looked at the last attempt; without a change there is no other one."""

    wanted: Wanted
    state: Literal["loading", "ready", "failed"] = "loading"
    reason: str = ""
    served: ServedView | None = None
    tried: Signature | None = None
    is_refused: bool = False

    def refuse(self, reason: str) -> None:
        """It is not loaded at all."""
        self.is_refused, self.state, self.reason = True, "failed", reason


@dataclass(slots=True)
class Views:
    """Every held view, by its text's digest."""

    held: dict[str, Held] = field(default_factory=dict)

    def want(self, wanted: list[Wanted]) -> list[Held]:
        """Make these the wanted views. Returns those that left."""
        goal: dict[str, Wanted] = {}
        deployed = {one.name for one in wanted if one.is_deployed}
        for one in wanted:
            if one.is_deployed or one.name not in deployed:
                goal.setdefault(one.digest, one)
        left = [held for digest, held in self.held.items() if digest not in goal]
        self.held = {digest: self.held.get(digest) or Held(one) for digest, one in goal.items()}
        for digest, one in goal.items():
            self.held[digest].wanted = one
        self._refuse_conflicts()
        return left

    def _refuse_conflicts(self) -> None:
        """A version has one text: of several deployed ones the first stays, and more than
        `views_max` are not loaded."""
        taken: dict[tuple[str, str], str] = {}
        for position, (digest, held) in enumerate(self.held.items()):
            key = (held.wanted.name, held.wanted.version)
            other = taken.setdefault(key, digest)
            if position >= views_max:
                held.refuse(f"more than views_max = {views_max} views")
            elif other != digest:
                held.refuse(f"version {key[1]} is another text, {other}")

    def forget_failures(self) -> None:
        """Try what failed once more, though its sources look the same."""
        for held in self.held.values():
            if held.state == "failed":
                held.tried, held.is_refused = None, False

    def to_load(self, now: Signature, is_changed: Callable[[LoadedView], bool]) -> list[Held]:
        """What is new, what failed before, and what is served over other content than `now`; each
        once for a state of the sources."""
        return [
            held
            for held in self.held.values()
            if not held.is_refused
            and held.tried != now
            and (held.served is None or is_changed(held.served.loaded))
        ]

    def find(self, name: str, version: str | UnsetType) -> ServedView:
        """The view that answers. Without a version: the highest deployed one, else the home's
        text. Raises MeshError VIEW_UNKNOWN, or UNAVAILABLE while it loads."""
        named = [held for held in self.held.values() if held.wanted.name == name]
        if version is not UNSET:
            named = [held for held in named if held.wanted.version == version]
        if not named:
            known = ", ".join(sorted({held.wanted.name for held in self.held.values()})) or "none"
            asked = name if version is UNSET else f"{name} version {version}"
            raise MeshError("VIEW_UNKNOWN", f"no view {asked}; known views: {known}")
        best = max(named, key=lambda held: (held.wanted.is_deployed, int(held.wanted.version)))
        if best.served is None:
            if best.state == "loading":
                raise MeshError("UNAVAILABLE", f"view {name} is loading", retry_after_ms=200)
            raise MeshError("VIEW_UNKNOWN", f"view {name} failed to load: {best.reason}")
        return best.served

    def states(self) -> list[ViewState]:
        """What the report to the control plane says."""
        return [
            ViewState(
                name=held.wanted.name,
                version=held.wanted.version,
                digest=held.wanted.digest,
                state=held.state,
                reason=held.reason or UNSET,
            )
            for held in self.held.values()
        ]

    def rows(self) -> list[ViewRow]:
        """What `views` answers: a view that could not be read has no contract to show."""
        return [_row(held, held.served) for held in self.held.values() if held.served is not None]


def _row(held: Held, served: ServedView) -> ViewRow:
    loaded = served.loaded
    header = loaded.header
    return ViewRow(
        name=header.name,
        version=header.version,
        digest=loaded.digest,
        state=held.state,
        reason=held.reason or loaded.reason or UNSET,
        entity=header.entity,
        event_time=header.event_time,
        freshness_s=header.freshness_s,
        owner=header.owner,
        request=header.request,
        fields=header.fields,
        lineage=loaded.lineage,
        path=loaded.path,
    )
