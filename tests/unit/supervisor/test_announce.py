"""What a start that failed says."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from shared.home import Home
from supervisor.announce import Announcer, cause_of
from supervisor.mesh import Mesh

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in <module>',
    "    load()",
    "    ^^^^^^",
    "x.FirstPoliciesError: policies.toml: Invalid value (at line 3, column 1)",
]


def test_a_traceback_is_told_by_its_cause() -> None:
    """The last line, with what follows it; cut off before its end it keeps the last frame."""
    assert cause_of(["a warning", *TRACEBACK]) == TRACEBACK[-1:]
    assert cause_of([*TRACEBACK, "aborted"]) == [TRACEBACK[-1], "aborted"]
    assert cause_of(TRACEBACK[:3]) == TRACEBACK[1:3]


def test_other_last_words_stay_whole() -> None:
    """What a native library printed."""
    assert cause_of(["a", "b"]) == ["a", "b"]
    assert cause_of([]) == []


def last_lines(tmp_path: Path, shortfalls: list[str], *, serves: bool) -> list[str]:
    """What a start ends with, of a mesh whose processes were announced already."""
    said: list[str] = []
    (tmp_path / "mortise.toml").write_text("home_version = 1\n")
    mesh = cast("Mesh", SimpleNamespace(slots=[], is_ready=True))
    Announcer(said.append).ready(mesh, Home(tmp_path), 1.5, shortfalls, serves=serves)
    return said


def test_a_whole_mesh_is_ready(tmp_path: Path) -> None:
    """One line, then the socket and a line to try."""
    first, *others = last_lines(tmp_path, [], serves=True)
    assert first.split() == ["mesh", "ready", "in", "1.50", "s"]
    assert len(others) == 2


def test_a_mesh_that_lacks_something_is_degraded(tmp_path: Path) -> None:
    """The reasons and the remedy; whether anything can be asked meanwhile."""
    for serves in (True, False):
        said = last_lines(tmp_path, ["data_fabric 0: view a 1", "b"], serves=serves)
        assert said[0].split(maxsplit=1)[1] == "degraded in 1.50 s: data_fabric 0: view a 1; b"
        assert f"  mortise stop --home {tmp_path}" in said
        assert f"  mortise start --detach --home {tmp_path}" in said
        assert any("nothing can be asked" in line for line in said) is not serves
        assert not any("ready" in line for line in said)
