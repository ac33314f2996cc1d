"""Tests of the hot path may run its compiled modules: MORTISE_TEST_COMPILED=1."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from shared import compiled

settings.register_profile("untimed", deadline=None)  # a busy machine fails no unit test
settings.load_profile("untimed")

if os.environ.get("MORTISE_TEST_COMPILED"):
    assert compiled.install(Path(__file__).parents[1]), "no current build: make compiled"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What looks into or replaces parts of a class runs from source only."""
    if compiled.is_in_use():
        reason = "compiled classes show no parts and let none be replaced"
        for item in items:
            if "interpreted" in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
