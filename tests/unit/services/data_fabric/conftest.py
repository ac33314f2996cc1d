"""Fixtures of the data fabric's unit tests."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.services.data_fabric.loaded import with_few_rows
from tests.unit.services.data_fabric.small_home import SmallHome


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The certificates of earlier tests: the same home needs no second comparison."""
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture
def home(
    tmp_path: Path, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SmallHome]:
    """The small home; certificates are small too."""
    with_few_rows(monkeypatch)
    home = SmallHome.create(tmp_path)
    shutil.copytree(certificates, home.certificates)
    yield home
    shutil.copytree(home.certificates, certificates, dirs_exist_ok=True)


@pytest.fixture
def uncertified(home: SmallHome) -> SmallHome:
    """The small home without certificates."""
    shutil.rmtree(home.certificates)
    home.certificates.mkdir()
    return home
