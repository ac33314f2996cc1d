"""A new home: its files written aside and moved in, the one that makes it a home last.

What is interrupted leaves no home: the folder then holds at most `.mortise-init`, which the next
attempt removes.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mortise.addresses import SETTINGS
from mortise.launcher import tree

EXAMPLES = ("flights", "bench")
FOLDERS = ("features", "models", "data")
PACK_FILE_MODE = 0o444
_ASIDE = ".mortise-init"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.py", ".mortise", _ASIDE)
_SETTINGS_TEXT = """\
# What the processes of this home need to exist. What may change live is policy: policies.toml.
home_version = 1

# [runtime]
# replicas = 1                       # model runtimes; threads × replicas ≤ cores − 1

# [sources.flights]                  # what feature views may read, by name
# kind = "parquet"
# path = "data/flights-*.parquet"    # below this folder

# [access.1001]                      # another user's rights; the owner has all
# roles = ["client"]
# tenants = ["*"]
# risk_level_min = 2
"""
_POLICIES_TEXT = """\
# The first policies: an empty control plane commits them as version 1. Later ones live in its log:
# mortise apply FILE. After `mortise publish PACK` and `mortise promote MODEL 1` nothing is needed.

# [[policy]]
# kind = "batching"
# name = "MODEL"
# [policy.spec]
# wait_ms = 10
# rows_max = 32
"""


class HomeExists(Exception):
    """The folder cannot become a home; the message says what to do."""


def create(target: Path, example: str | None = None) -> None:
    """Make a home in `target`, which must be absent or empty; `example` is one of `EXAMPLES`.

    Raises HomeExists, or OSError when it cannot be written; either leaves the folder as it was.
    """
    was_absent = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    try:
        with _aside(target) as aside:
            _write(aside, example)
            names = sorted(os.listdir(aside), key=lambda name: name == SETTINGS)
            for name in names:
                (aside / name).rename(target / name)
    except BaseException:
        if was_absent:
            shutil.rmtree(target, ignore_errors=True)
        raise


@contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A folder inside the target, this process's alone, gone afterwards."""
    aside = target / _ASIDE
    aside.mkdir(exist_ok=True)
    descriptor = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HomeExists(f"another mortise init is writing {target}") from None
        try:
            _refuse_used(target)
            for leftover in aside.iterdir():  # of an attempt that was killed
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    finally:
        os.close(descriptor)


def _refuse_used(target: Path) -> None:
    if (target / SETTINGS).exists():
        raise HomeExists(f"{target} is a home already; start it: mortise start --home {target}")
    used = sorted(name for name in os.listdir(target) if name != _ASIDE)
    if used:
        raise HomeExists(
            f"{target} is not empty ({', '.join(used[:3])}{', …' if len(used) > 3 else ''});"
            " name a new folder, or empty this one"
        )


def _write(folder: Path, example: str | None) -> None:
    (folder / SETTINGS).write_text(_SETTINGS_TEXT, encoding="utf-8")
    (folder / "policies.toml").write_text(_POLICIES_TEXT, encoding="utf-8")
    (folder / ".gitignore").write_text(".mortise/\n", encoding="utf-8")
    if example is not None:
        shutil.copytree(
            tree() / "examples" / example,
            folder,
            ignore=_LEFT_OUT,
            copy_function=shutil.copyfile,
            dirs_exist_ok=True,
        )
    for name in FOLDERS:
        (folder / name).mkdir(exist_ok=True)
    for path in (folder / "models").rglob("*"):
        if path.is_file():
            path.chmod(PACK_FILE_MODE)
