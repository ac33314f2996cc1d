"""The line to try."""

from pathlib import Path

import pytest

from supervisor.hint import line_to_try, lines_to_repair

TENSOR = '[{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"carrier": "MQ"}]', "infer delay --rows @"),
        (TENSOR, "infer delay --inputs @"),
        ("[]", "status"),
        ("not json", "status"),
        ('{"a": 1}', "status"),
    ],
)
def test_a_home_with_a_request_gives_a_line_that_asks(
    tmp_path: Path, text: str, words: str
) -> None:
    """Rows or tensors are told apart; what is neither gives the status line."""
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests" / "delay.json").write_text(text)
    assert line_to_try(tmp_path).startswith(f"mortise {words}")


def test_a_home_without_requests_gives_the_status_line(tmp_path: Path) -> None:
    """Nothing to ask with."""
    assert line_to_try(tmp_path) == f"mortise status --home {tmp_path}"


def test_odd_paths_are_quoted(tmp_path: Path) -> None:
    """The line can be pasted whatever the folder is called."""
    assert line_to_try(Path("/a b")) == "mortise status --home '/a b'"


def test_a_repair_ends_with_lines_that_can_be_pasted() -> None:
    """Correct, stop, start: the settings are read at start only."""
    what, *lines = lines_to_repair(Path("/a b"))
    assert "mortise.toml, read at start only" in what
    assert lines == ["mortise stop --home '/a b'", "mortise start --detach --home '/a b'"]
