"""The path guard: our packages come from this tree, whatever else has their names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mortise import launcher

ROOT = Path(__file__).parents[3]


def run(program: str, *, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python program in a folder of its own, with our package findable."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def rivals(tmp_path: Path) -> Path:
    """A folder with packages of other people that have the names of ours."""
    for name in ("supervisor", "shared"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not ours')")
    return tmp_path


def test_ours_win_over_others_of_the_same_name(rivals: Path) -> None:
    """Even where the others come first, in this process and in its children."""
    program = (
        "import sys; sys.path.insert(0, '');"  # the rivals, first
        f"sys.path.append({str(ROOT)!r});"
        "from mortise.launcher import put_first, tree; put_first();"
        "import supervisor, shared, subprocess;"
        "assert supervisor.__file__.startswith(str(tree())), supervisor.__file__;"
        "subprocess.run([sys.executable, '-P', '-c', 'import supervisor, shared'], check=True)"
    )
    done = run(program, cwd=rivals, PYTHONPATH=str(rivals))
    assert done.returncode == 0, done.stderr


def test_a_package_that_is_loaded_already_is_refused(rivals: Path) -> None:
    """A `shared` of someone else in this very process cannot be put aside: it is named."""
    (rivals / "shared/__init__.py").write_text("")
    program = (
        "import sys; sys.path.insert(0, ''); import shared;"
        f"sys.path.append({str(ROOT)!r});"
        "from mortise.launcher import put_first; put_first()"
    )
    done = run(program, cwd=rivals)
    assert "WrongTree: package shared comes from" in done.stderr


def test_the_tree_of_a_checkout_is_the_repository() -> None:
    """Every package of ours is there."""
    assert launcher.tree() == ROOT
    assert all((launcher.tree() / name).is_dir() for name in launcher.PACKAGES)


def test_the_private_folder_wins_in_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where `mortise/app` exists, that is the tree."""
    (tmp_path / "app").mkdir()
    monkeypatch.setattr(launcher, "_HERE", tmp_path)
    assert launcher.tree() == tmp_path / "app"


def test_without_the_serving_packages_the_command_says_what_installs_them(tmp_path: Path) -> None:
    """No traceback: the package that is missing and the line to type."""
    program = (
        "import sys; sys.modules['rich'] = None; sys.argv = ['mortise', 'start'];"
        f"sys.path.append({str(ROOT)!r});"
        "from mortise.__main__ import main; main()"
    )
    done = run(program, cwd=tmp_path)
    assert done.returncode == 1
    assert "pip install 'mortise[serve]'" in done.stderr
    assert "Traceback" not in done.stderr
