"""What a person is told to do about each error."""

import re

import pytest

from contracts.errors import ERRORS
from mortise import generated as sdk
from mortise.cli.app import COMMANDS
from mortise.cli.remedies import REMEDIES, remedy

KNOWN = {name for _, commands in COMMANDS.values() for name in commands}


def test_every_error_has_a_remedy() -> None:
    """No more and no less than the vocabulary."""
    assert REMEDIES.keys() == ERRORS.keys()


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_names_commands_that_exist(name: str) -> None:
    """A line to type can be typed."""
    assert set(re.findall(r"mortise (\w+)", REMEDIES[name])) <= KNOWN


def test_a_remedy_carries_the_trace_id() -> None:
    """Where the next step needs it, it is written out."""
    error = sdk.Internal("no", trace_id="ab")
    assert remedy(error).endswith("mortise logs --trace ab")
