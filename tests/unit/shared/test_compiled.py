"""Compiled twins of modules: used when they are of these sources, and only then."""

import importlib.util
import json
import sys
import sysconfig
from pathlib import Path

import pytest

from shared.compiled import INDEX, INTERPRETED, PLACE, Build, Finder, digest_of, install, tag

SOURCE = "VALUE = 1\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one source and a build of it."""
    (tmp_path / "one.py").write_text(SOURCE)
    folder = tmp_path / PLACE
    folder.mkdir(parents=True)
    (folder / "one.so").write_bytes(b"code")
    digests = {"one.py": digest_of(tmp_path / "one.py")}
    Build(folder, tag(), digests, {"one": "one.so"}).write()
    return tmp_path


def read(tree: Path) -> Build:
    """The build, which is there."""
    build = Build.read(tree)
    assert build is not None
    return build


def test_a_build_of_these_sources_is_current(tree: Path) -> None:
    """What was written is read back and has no fault."""
    assert read(tree).fault(tree) is None


def test_a_source_that_changed_makes_it_stale(tree: Path) -> None:
    """One byte is enough, and the reason names the file."""
    (tree / "one.py").write_text(SOURCE + "#")
    assert read(tree).fault(tree) == "one.py has changed since"


def test_a_source_that_is_gone_makes_it_stale(tree: Path) -> None:
    """A removed module must not live on as its twin."""
    (tree / "one.py").unlink()
    assert read(tree).fault(tree) == "one.py has changed since"


def test_a_build_of_another_interpreter_is_not_used(tree: Path) -> None:
    """Its files could not be loaded."""
    build = read(tree)
    other = Build(build.folder, ".cpython-27.so", build.sources, build.modules)
    assert str(other.fault(tree)).startswith("it was made for .cpython-27.so")


def test_a_build_with_a_missing_file_is_not_used(tree: Path) -> None:
    """Half a build is none."""
    (tree / PLACE / "one.so").unlink()
    assert read(tree).fault(tree) == "one.so is missing"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"tag": "x"}), "\xff"])
def test_an_index_that_is_garbage_is_no_build(tree: Path, text: str) -> None:
    """A start never fails for it."""
    (tree / PLACE / INDEX).write_bytes(text.encode("latin-1"))
    assert Build.read(tree) is None


def test_no_build_is_no_build(tmp_path: Path) -> None:
    """The commonest case in a fresh checkout."""
    assert Build.read(tmp_path) is None
    assert not install(tmp_path)


def test_a_process_can_be_told_to_run_from_source(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For debugging: the variable wins over a current build."""
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.setenv(INTERPRETED, "1")
    assert not install(tree)
    monkeypatch.delenv(INTERPRETED)
    assert install(tree)
    assert [type(finder) for finder in sys.meta_path] == [Finder]


def test_the_finder_finds_its_modules_and_no_other(tree: Path) -> None:
    """Other modules are left to the other finders."""
    finder = Finder(read(tree))
    spec = finder.find_spec("one", None)
    assert spec is not None
    assert spec.origin == str(tree / PLACE / "one.so")
    assert finder.find_spec("two", None) is None


def test_a_twin_that_cannot_be_loaded_says_so(tree: Path) -> None:
    """It is never taken for the module: no half-loaded process."""
    spec = Finder(read(tree)).find_spec("one", None)
    assert spec is not None
    with pytest.raises(ImportError):
        importlib.util.module_from_spec(spec)


def test_the_tag_is_what_the_interpreter_calls_its_extensions() -> None:
    """The same as setuptools gives the files."""
    assert tag() == sysconfig.get_config_var("EXT_SUFFIX")
