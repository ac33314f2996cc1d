"""The state table of a push, walked exhaustively."""

import itertools
from collections.abc import Callable

import pytest

from contracts.distribution import Acknowledge, Position
from contracts.limits import prepare_timeout_s
from services.control_plane.push import Push, activate_timeout_s

HERE = Position(epoch=1, sequence=2, hash="sha256:" + "a" * 64)
OTHERS = [
    Position(epoch=1, sequence=1, hash="sha256:" + "a" * 64),
    Position(epoch=2, sequence=2, hash="sha256:" + "a" * 64),
    Position(epoch=1, sequence=2, hash="sha256:" + "b" * 64),
]


def say(name: str, state: str, position: Position = HERE) -> Acknowledge:
    """An acknowledgement."""
    return Acknowledge(instance=name, position=position, state=state, reason=f"{name} says so")  # type: ignore[arg-type]


def push(*required: str) -> Push:
    """A push that begins at 100 s."""
    return Push(HERE, required, 100.0)


def activating(*required: str) -> Push:
    """A push whose commit is on the disk."""
    one = push(*required)
    for name in required:
        one.acknowledged(say(name, "valid"))
    one.appended(101.0)
    return one


def test_all_valid_then_all_active() -> None:
    """The whole way: nothing is appended before the last valid, nothing done before the last
    active."""
    one = push("a", "b")
    assert one.phase == "preparing"
    one.acknowledged(say("a", "valid"))
    assert one.phase == "preparing"
    one.acknowledged(say("b", "valid"))
    assert one.phase == "appending"
    one.appended(100.1)
    assert one.phase == "activating"
    one.acknowledged(say("b", "active"))
    one.acknowledged(say("a", "active"))
    assert (one.phase, one.fenced) == ("done", [])


def test_nobody_required_is_at_once_ready_to_append() -> None:
    """Without instances a commit needs the disk alone."""
    one = push()
    assert one.phase == "appending"
    one.appended(100.0)
    assert (one.phase, one.fenced) == ("done", [])


@pytest.mark.parametrize("order", list(itertools.permutations(["a valid", "b invalid"])))
def test_one_invalid_rejects_whatever_the_others_say(order: tuple[str, ...]) -> None:
    """One no is enough, before or after somebody's yes; it is named with its reason."""
    one = push("a", "b")
    for event in order:
        one.acknowledged(say(*event.split()))
    assert one.phase == "rejected"
    assert one.rejection() == "b: b says so"
    assert one.was_refused


def test_silence_is_named_after_the_deadline_and_not_before() -> None:
    """At 250 ms, not earlier, the silent ones are named, and only they."""
    one = push("a", "b", "c")
    one.acknowledged(say("b", "valid"))
    one.tick(100.0 + prepare_timeout_s - 0.001)
    assert one.phase == "preparing"
    one.tick(100.0 + prepare_timeout_s)
    assert one.phase == "rejected"
    assert set(one.reasons) == {"a", "c"}
    assert "silent for 250 ms" in one.rejection()
    assert not one.was_refused


def test_an_instance_that_leaves_while_preparing_rejects() -> None:
    """Even one that had said valid: what it holds is not known any more."""
    one = push("a", "b")
    one.acknowledged(say("a", "valid"))
    one.left("a")
    assert (one.phase, one.rejection()) == ("rejected", "a: not connected")


def test_an_instance_that_says_goodbye_while_preparing_is_waited_for_no_longer() -> None:
    """The others' word is enough, whether it said valid before or not."""
    one = push("a", "b")
    one.acknowledged(say("a", "valid"))
    one.excused("b")
    assert one.phase == "appending"
    one.left("b")
    one.appended(1.0)
    one.acknowledged(say("a", "active"))
    assert (one.phase, one.fenced) == ("done", [])


def test_an_instance_that_says_goodbye_while_activating_is_not_fenced() -> None:
    """It is gone as planned: the commit's answer does not name it."""
    one = activating("a", "b")
    one.acknowledged(say("a", "active"))
    one.excused("b")
    one.left("b")
    assert (one.phase, one.fenced, one.reasons) == ("done", [], {})


def test_a_full_disk_rejects() -> None:
    """A commit that cannot be written is active nowhere."""
    one = push("a")
    one.acknowledged(say("a", "valid"))
    one.not_appended("the disk is full")
    assert (one.phase, one.rejection()) == ("rejected", "the disk is full")


@pytest.mark.parametrize("event", ["left", "invalid", "valid"])
def test_nothing_stops_the_append_once_all_were_valid(event: str) -> None:
    """While the commit is being written, nobody's word or death turns the push back."""
    one = push("a", "b")
    for name in "ab":
        one.acknowledged(say(name, "valid"))
    one.left("a") if event == "left" else one.acknowledged(say("a", event))
    one.tick(1_000.0)
    assert one.phase == "appending"
    assert ("a" in one.valid) == (event == "valid")


def test_one_that_dies_after_the_append_is_fenced() -> None:
    """Activation goes forward without it."""
    one = activating("a", "b")
    one.left("a")
    one.acknowledged(say("b", "active"))
    assert (one.phase, one.fenced) == ("done", ["a"])


def test_one_that_refuses_after_the_append_is_fenced() -> None:
    """A disk that fails at the rename does not turn the push back."""
    one = activating("a", "b")
    one.acknowledged(say("a", "invalid"))
    one.acknowledged(say("b", "active"))
    assert (one.phase, one.fenced) == ("done", ["a"])


def test_a_slow_activation_is_fenced_after_the_deadline() -> None:
    """The operator is not kept waiting for a slow one."""
    one = activating("a", "b")
    one.acknowledged(say("b", "active"))
    one.tick(101.0 + activate_timeout_s - 0.001)
    assert one.phase == "activating"
    one.tick(101.0 + activate_timeout_s)
    assert (one.phase, one.fenced) == ("done", ["a"])


def test_one_that_was_promoted_meanwhile_is_waited_for() -> None:
    """It was a standby when the push began: it must have the set before the operator is told."""
    one = push("a")
    one.acknowledged(say("a", "valid"))
    one.joined({"b"})
    one.appended(101.0)
    one.acknowledged(say("a", "active"))
    assert one.phase == "activating"
    one.acknowledged(say("b", "active"))
    assert (one.phase, one.fenced) == ("done", [])


def test_one_that_came_back_is_not_fenced() -> None:
    """An instance that left and has the version after all counts as active."""
    one = activating("a", "b")
    one.left("a")
    one.acknowledged(say("a", "active"))
    one.acknowledged(say("b", "active"))
    assert (one.phase, one.fenced) == ("done", [])


@pytest.mark.parametrize("position", OTHERS, ids=["older", "other epoch", "other hash"])
@pytest.mark.parametrize("state", ["valid", "invalid", "active"])
@pytest.mark.parametrize("make", [push, activating], ids=["preparing", "activating"])
def test_words_about_another_position_change_nothing(
    make: Callable[..., Push], state: str, position: Position
) -> None:
    """An acknowledgement of an earlier or foreign set is not one of this push."""
    one = make("a")
    before = (one.phase, set(one.valid), set(one.active), dict(one.reasons))
    one.acknowledged(say("a", state, position))
    assert (one.phase, one.valid, one.active, one.reasons) == before


@pytest.mark.parametrize("state", ["valid", "invalid", "active"])
def test_a_stranger_neither_helps_nor_hinders(state: str) -> None:
    """Standbys and late joiners are not required: their yes is noted, their no ignored."""
    one = push("a")
    one.acknowledged(say("standby", state))
    assert one.phase == "preparing"
    assert not one.reasons
    assert ("standby" in one.valid) == (state == "valid")


EVENTS: dict[str, Callable[[Push], None]] = {
    "valid a": lambda one: one.acknowledged(say("a", "valid")),
    "valid b": lambda one: one.acknowledged(say("b", "valid")),
    "invalid a": lambda one: one.acknowledged(say("a", "invalid")),
    "active a": lambda one: one.acknowledged(say("a", "active")),
    "active b": lambda one: one.acknowledged(say("b", "active")),
    "left b": lambda one: one.left("b"),
    "late": lambda one: one.tick(1_000.0),
    "append": lambda one: one.appended(500.0) if one.phase == "appending" else None,
}
ALLOWED = {
    "preparing": {"preparing", "appending", "rejected"},
    "appending": {"appending", "activating", "done"},
    "activating": {"activating", "done"},
    "done": {"done"},
    "rejected": {"rejected"},
}


def test_every_sequence_of_events_keeps_the_invariant() -> None:
    """All 8⁵ sequences: phases only follow the table, an end is an end, nothing is appended
    without every yes, and after the append nothing rejects."""
    for sequence in itertools.product(EVENTS, repeat=5):
        one = push("a", "b")
        for event in sequence:
            before = one.phase
            EVENTS[event](one)
            assert one.phase in ALLOWED[before], (sequence, before, one.phase)
            if before == "preparing" and one.phase == "appending":
                assert one.valid >= one.required, sequence
        if one.phase == "done":
            assert set(one.fenced) == one.required - one.active, sequence


@pytest.mark.parametrize("event", ["valid a", "active a", "invalid a"])
def test_a_repeated_word_counts_once(event: str) -> None:
    """Duplicate acknowledgements leave the same state as one."""
    once, twice = push("a", "b"), push("a", "b")
    EVENTS[event](once)
    EVENTS[event](twice)
    EVENTS[event](twice)
    assert vars(once) == vars(twice)
