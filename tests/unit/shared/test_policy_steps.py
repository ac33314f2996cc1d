"""What an instance does with each item of its stream, walked as a whole table."""

import itertools

import pytest

from contracts.distribution import PolicyItem, Position
from contracts.policies import PolicySet
from contracts.types import UNSET
from shared.policy_steps import choose_step, compare

A, B = ("sha256:" + letter * 64 for letter in "ab")


def at(epoch: int, sequence: int, digest: str = A) -> Position:
    """A place in a log."""
    return Position(epoch=epoch, sequence=sequence, hash=digest)


SET = PolicySet(version=5, policies=[])
IN_FORCE = at(1, 5)


@pytest.mark.parametrize(
    ("candidate", "current", "order"),
    [
        (at(1, 1), None, "newer"),
        (at(1, 6), IN_FORCE, "newer"),
        (at(2, 1), IN_FORCE, "newer"),
        (at(1, 5), IN_FORCE, "same"),
        (at(1, 5, B), IN_FORCE, "conflict"),
        (at(1, 4), IN_FORCE, "older"),
        (at(0, 9), IN_FORCE, "older"),
    ],
)
def test_positions_are_ordered_by_epoch_then_sequence(
    candidate: Position, current: Position | None, order: str
) -> None:
    """One place never stands for two hashes."""
    assert compare(candidate, current) == order


def item(action: str, position: Position, *, carries: bool = True) -> PolicyItem:
    """An item of the stream."""
    return PolicyItem(action=action, position=position, policies=SET if carries else UNSET)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("received", "prepared", "action"),
    [
        (item("prepare", at(1, 6)), None, "store"),
        (item("prepare", at(1, 6)), at(1, 6), "store"),
        (item("prepare", at(1, 7)), at(1, 6), "store"),
        (item("prepare", at(1, 6), carries=False), None, "refuse"),
        (item("activate", at(1, 6), carries=False), at(1, 6), "activate"),
        (item("activate", at(1, 6)), None, "activate"),
        (item("activate", at(1, 6), carries=False), None, "refuse"),
        (item("activate", at(1, 6), carries=False), at(1, 6, B), "refuse"),
        (item("activate", at(2, 5)), None, "activate"),
        (item("abandon", at(1, 6), carries=False), at(1, 6), "drop"),
        (item("abandon", at(1, 6), carries=False), None, "drop"),
        (item("prepare", at(1, 5)), None, "repeat"),
        (item("activate", at(1, 5)), None, "repeat"),
    ],
)
def test_each_item_has_its_step(
    received: PolicyItem, prepared: Position | None, action: str
) -> None:
    """The table, with version 5 in force."""
    held = None if prepared is None else (prepared, SET)
    assert choose_step(received, IN_FORCE, held).action == action


def test_only_what_was_prepared_is_taken_as_checked() -> None:
    """A set that comes with an activation was not checked here yet."""
    held = (at(1, 6), SET)
    assert choose_step(item("activate", at(1, 6)), IN_FORCE, held).is_prepared
    assert not choose_step(item("activate", at(1, 7)), IN_FORCE, held).is_prepared


def test_nothing_ever_goes_back() -> None:
    """Whatever is sent and prepared, an older place or another hash is refused with both places."""
    actions, carried = ("prepare", "activate"), (True, False)
    backwards = (at(1, 4), at(0, 9), at(1, 5, B))
    for action, carries, position in itertools.product(actions, carried, backwards):
        for held in (None, (position, SET)):
            step = choose_step(item(action, position, carries=carries), IN_FORCE, held)
            assert step.action == "refuse"
            assert "would go back" in step.reason
            assert "sequence 5" in step.reason
