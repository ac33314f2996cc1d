"""New homes: whole or not at all."""

import os
import shutil
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from mortise.scaffold import HomeExists, create
from shared.home import Home


def names(folder: Path) -> set[str]:
    """What lies in a folder."""
    return set(os.listdir(folder))


def test_a_new_home_has_all_its_parts(tmp_path: Path) -> None:
    """Without an example: the two files, commented, and empty folders; the mesh accepts it."""
    create(tmp_path / "deep/home")
    home = tmp_path / "deep/home"
    assert names(home) == {
        "mortise.toml", "policies.toml", "features", "models", "data", ".gitignore",
    }  # fmt: skip
    assert Home(home).config().home_version == 1
    assert tomllib.loads((home / "policies.toml").read_text()) == {}


def test_the_comments_of_a_new_home_are_true(tmp_path: Path) -> None:
    """Every commented setting, taken in, is accepted by the mesh."""
    create(tmp_path / "home")
    settings = tmp_path / "home/mortise.toml"
    lines = settings.read_text().splitlines()
    settings.write_text("\n".join(line.removeprefix("# ") for line in lines[1:]))
    config = Home(tmp_path / "home").config()
    assert config.sources["flights"].path == "data/flights-*.parquet"
    assert config.access["1001"].risk_level_min == 2


def test_an_example_is_copied_whole(tmp_path: Path) -> None:
    """The bench home: its policies, and its packs read-only; no program is copied."""
    create(tmp_path / "home", "bench")
    home = tmp_path / "home"
    policies = tomllib.loads((home / "policies.toml").read_text())["policy"]
    assert {"tiny", "sleepy"} <= {policy["name"] for policy in policies}
    packs = list((home / "models").rglob("*.safetensors"))
    assert packs
    assert {stat.S_IMODE(path.stat().st_mode) for path in packs} == {0o444}
    assert not list(home.rglob("*.py"))
    assert (home / ".gitignore").read_text() == ".mortise/\n"


def test_a_home_holds_no_path_of_where_it_was_made(tmp_path: Path) -> None:
    """A home copied elsewhere is the same home."""
    create(tmp_path / "home", "bench")
    text = [path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert text
    assert not [part for part in text if os.fsencode(tmp_path) in part]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    """Also the current one, which keeps its identity for the shell that stands in it."""
    before = tmp_path.stat().st_ino
    create(tmp_path)
    assert tmp_path.stat().st_ino == before
    assert (tmp_path / "mortise.toml").exists()


def test_a_used_folder_is_refused_and_untouched(tmp_path: Path) -> None:
    """The message names what lies there, and what to do."""
    for name in "abcd":
        (tmp_path / name).touch()
    with pytest.raises(HomeExists, match=r"not empty \(a, b, c, …\); name a new folder"):
        create(tmp_path)
    assert names(tmp_path) == set("abcd")


def test_a_home_is_not_made_twice(tmp_path: Path) -> None:
    """The second time says how to start the first."""
    create(tmp_path)
    with pytest.raises(HomeExists, match=r"is a home already; start it: mortise start --home"):
        create(tmp_path)


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, OSError])
def test_an_interrupted_init_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: type[BaseException]
) -> None:
    """Interrupted while it copies, the folder is as it was: absent, or empty."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise trouble

    monkeypatch.setattr(shutil, "copytree", interrupt)
    for target in (tmp_path / "absent", tmp_path / "empty"):
        existed = target.name == "empty"
        if existed:
            target.mkdir()
        with pytest.raises(trouble):
            create(target, "bench")
        assert target.exists() == existed
        assert not existed or names(target) == set()


def test_the_leftover_of_a_killed_init_is_removed(tmp_path: Path) -> None:
    """A kill leaves at most the folder aside; the next init takes its place."""
    (tmp_path / ".mortise-init/models").mkdir(parents=True)
    (tmp_path / ".mortise-init/mortise.toml").touch()
    create(tmp_path, "bench")
    assert ".mortise-init" not in names(tmp_path)
    assert (tmp_path / "mortise.toml").read_text()
