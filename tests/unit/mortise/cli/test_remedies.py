"""What a person is told to do about each error."""

import re
from pathlib import Path

import pytest

from contracts.errors import ERRORS
from mortise import generated as sdk
from mortise.cli.app import COMMANDS
from mortise.cli.remedies import OF_COMMAND, REMEDIES, remedy, remedy_of, with_home
from mortise.launcher import tree

KNOWN = {name for _, commands in COMMANDS.values() for name in commands}


def test_every_error_has_a_remedy() -> None:
    """No more and no less than the vocabulary."""
    assert REMEDIES.keys() == ERRORS.keys()


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_names_commands_that_exist(name: str) -> None:
    """A line to type can be typed."""
    assert set(re.findall(r"mortise (\w+)", REMEDIES[name])) <= KNOWN


def test_pack_and_apply_have_their_own_next_steps() -> None:
    """They name the document that says what to correct, and it exists."""
    for (command, name), line in OF_COMMAND.items():
        assert command in KNOWN
        assert name in ERRORS
        (document,) = re.findall(r"docs/\w+\.md", line)
        assert (tree() / document).is_file()
        assert remedy_of(name, command) == line
    assert remedy_of("PACK_INVALID", "publish") == REMEDIES["PACK_INVALID"]
    assert remedy(sdk.InvalidRequest("no"), "apply").endswith("docs/policies.md")


def test_a_remedy_carries_the_trace_id() -> None:
    """Where the next step needs it, it is written out."""
    error = sdk.Internal("no", trace_id="ab")
    assert remedy(error).endswith("mortise logs --trace ab")


def test_a_remedy_without_a_trace_id_has_no_placeholder() -> None:
    """What is printed can be pasted."""
    assert remedy(sdk.Internal("no")).endswith("mortise logs")


def test_a_remedy_carries_the_home_that_was_given() -> None:
    """Every command of it, quoted; not where the default was used, nor a second time."""
    assert (
        with_home("see mortise models, mortise contracts show", Path("a b"))
        == "see mortise models --home 'a b', mortise contracts show --home 'a b'"
    )
    for line in ("start with the mortise command", "mortise init x", "mortise stop --home y"):
        assert with_home(line, Path("a")) == line
    assert with_home("mortise models", None) == "mortise models"


def test_an_unknown_trace_leads_to_the_log() -> None:
    """With the id that was asked for, not that of the asking call."""
    error = sdk.TraceUnknown("no receipt", trace_id="ab", details={"asked": "cd"})
    assert "mortise logs --trace cd;" in remedy(error)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("tiny 2 is not deployed", "mortise promote tiny 2;"),
        ("tiny has no route", "mortise promote tiny VERSION;"),
        ("tiny 2 is not ready on any replica", "wait for it"),
    ],
)
def test_what_no_waiting_deploys(message: str, line: str) -> None:
    """A version that is not deployed is promoted, or deployed by a policy; one that loads is
    waited for."""
    said = remedy(sdk.ModelNotReady(message))
    assert line in said
    assert ("a deployment policy: mortise apply FILE" in said) == ("promote" in line)


def test_a_rejection_that_passes_says_so() -> None:
    """An absent instance has a hint, one that said no has none."""
    passing = sdk.PolicyRejected("x: not connected", retry_after_ms=500)
    assert remedy(passing).startswith("it passes by itself: try again in a second")
    assert remedy(sdk.PolicyRejected("x: no")).startswith("see the instance")
