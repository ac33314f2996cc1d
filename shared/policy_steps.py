"""What an instance does with each item of its policy stream: pure, a table without I/O.

Invariant: (epoch, sequence) in force never goes back, and one (epoch, sequence) never stands for
two hashes.
"""

from dataclasses import dataclass
from typing import Literal

from contracts.distribution import PolicyItem, Position
from contracts.policies import PolicySet
from contracts.types import UNSET

Order = Literal["newer", "same", "older", "conflict"]


def compare(candidate: Position, current: Position | None) -> Order:
    """How a position relates to the one in force; `conflict` is the same place, another hash."""
    if current is None:
        return "newer"
    left, right = (candidate.epoch, candidate.sequence), (current.epoch, current.sequence)
    if left != right:
        return "newer" if left > right else "older"
    return "same" if candidate.hash == current.hash else "conflict"


@dataclass(frozen=True, slots=True)
class Step:
    """What to do: `store` (check, write aside, say valid), `activate` (put in force, rename, say
    active; `is_prepared`: checked and on disk already), `drop` the candidate, `repeat` the
    acknowledgement `active`, or `refuse` with the reason."""

    action: Literal["store", "activate", "drop", "repeat", "refuse"]
    policies: PolicySet | None = None
    is_prepared: bool = False
    reason: str = ""


def choose_step(
    item: PolicyItem, current: Position | None, prepared: tuple[Position, PolicySet] | None
) -> Step:
    """The step for one item, given what is in force and which candidate lies on disk."""
    order = compare(item.position, current)
    carried = None if item.policies is UNSET else item.policies
    is_prepared = prepared is not None and prepared[0] == item.position
    if item.action == "abandon":
        return Step("drop")
    if order in ("older", "conflict"):
        assert current is not None
        return Step(
            "refuse",
            reason=f"{_place(item.position)} would go back from {_place(current)}, in force here",
        )
    if order == "same":
        return Step("repeat")
    if item.action == "prepare":
        if carried is None:
            return Step("refuse", reason=f"prepare of {_place(item.position)} carries no policies")
        return Step("store", carried)
    if is_prepared:
        assert prepared is not None
        return Step("activate", prepared[1], is_prepared=True)
    if carried is None:
        return Step("refuse", reason=f"{_place(item.position)} was not prepared here")
    return Step("activate", carried)


def _place(position: Position) -> str:
    return f"epoch {position.epoch} sequence {position.sequence} ({position.hash[7:15]})"
