"""Pytest plugin: `mesh`, a throw-away mesh from a home directory, and `contract`, its checks.

    def test_it_answers(mesh):
        with mesh.client() as client:
            assert client.infer("delay", rows=[...]).predictions

    def test_it_keeps_its_contract(contract):
        contract()

The home is `--mortise-home DIR`, or the fixture's parameter (`indirect=True`). It is copied, so a
test never changes it. Pytest loads this file everywhere: it imports the rest only when used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mortise.throwaway import Mesh


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--mortise-home`."""
    group = parser.getgroup("mortise")
    group.addoption("--mortise-home", metavar="DIR", help="home directory that `mesh` starts")


@pytest.fixture(scope="module")
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """A running mesh of a copy of the home; no process of it is left when the module is done."""
    from mortise.throwaway import Mesh

    home = getattr(request, "param", None) or request.config.getoption("--mortise-home")
    if home is None:
        pytest.fail("mesh needs a home: --mortise-home DIR (mortise init DIR makes one)", False)
    if not (Path(home) / "mortise.toml").is_file():
        pytest.fail(f"mesh: {home} is no home (mortise init {home} makes one)", False)
    with Mesh(home) as running:
        yield running


@pytest.fixture(scope="module")
def contract(mesh: Mesh) -> Callable[..., None]:
    """`contract(*services)`: fails with the conformance checks that the services do not pass."""
    from mortise.generated import METHODS
    from mortise.throwaway import failed_checks

    def check(*services: str) -> None:
        failed = [
            line
            for service in services or tuple(METHODS)
            for line in failed_checks(mesh.socket(service))
        ]
        assert not failed, "\n".join(failed)

    return check
