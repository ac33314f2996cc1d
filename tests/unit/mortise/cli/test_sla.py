"""What `mortise sla` prints, and how it ends."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.policies import SlaSpec
from mortise.cli.app import run
from mortise.cli.sla import percent
from supervisor import run as mesh
from supervisor.sla import Report
from supervisor.sla_verdicts import judge

LATE = {"5m": {}, "24h": {"queue model_runtime": 4}}


def rows(**windows: dict[str, int]) -> list[Any]:
    """A row a window, of these counts."""
    spec = SlaSpec(p99_ms=100.0)
    return [
        judge("tiny", window.removeprefix("w"), 1_700_000_000.0, counts, spec)
        for window, counts in windows.items()
    ]


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mesh that kept its promises for five minutes, and not for a day."""
    found = Report(
        policy_version=3,
        is_current=False,
        rows=rows(
            w5m={"end ok": 10, "time 0.1": 10, "features fresh": 10, "stage tokenize 0.005": 10},
            w1h={},
            w24h={"end ok": 9, "end OVERLOADED": 1, "time 0.25": 9, "time inf": 1, "fallback": 2},
        ),
        late=LATE,
    )
    monkeypatch.setattr(mesh, "sla", lambda home: msgspec.to_builtins(found))


@pytest.mark.usefixtures("reported")
@pytest.mark.parametrize(("window", "code"), [("5m", 0), ("1h", 0), ("24h", 1), ("30d", 0)])
def test_a_missed_promise_is_exit_code_one(window: str, code: int) -> None:
    """In a window that is shown; one without requests misses nothing."""
    assert run(["sla", "--window", window]) == code


@pytest.mark.usefixtures("reported")
def test_the_table_has_every_figure_beside_its_target(capsys: pytest.CaptureFixture[str]) -> None:
    """And the bucket that a percentile was interpolated in."""
    assert run(["sla"]) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == (
        "tiny 5m 2023-11-14 22:13 10 100 % 99.95 % 100 % 75 99.5 50 - 100 100 100 % kept"
    )
    assert lines[2].endswith("0 99.95 % 100 % 100 no requests")
    assert "90 % 99.95 % -19900 %" in lines[3]
    assert lines[3].endswith("5000 over 5000 100 missed: availability, p99; 2 fell back")
    assert "tiny 5m tokenize p95 4.875 2.5 - 5 15 yes" in lines
    assert "24h queue model_runtime 4" in lines
    assert lines[-1].startswith("the orchestrator did not answer")


@pytest.mark.usefixtures("reported")
def test_json_has_the_same_of_the_window(capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, for programs."""
    assert run(["sla", "--json", "--window", "24h"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["policy_version"], found["is_current"]) == (3, False)
    assert found["late"] == {"24h": LATE["24h"]}
    (row,) = found["rows"]
    assert row["missed"] == ["availability", "p99"]
    assert row["errors"] == {"OVERLOADED": 1}


def test_a_window_that_does_not_exist_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The four are named."""
    assert run(["sla", "--window", "2h"]) == 2
    assert "30d" in capsys.readouterr().err


def test_without_a_mesh_the_start_line_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3, as of every command."""
    run(["init", str(tmp_path)])
    assert run(["sla", "--home", str(tmp_path)]) == 3
    assert f"mortise start --detach --home {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100 %"), (0.999999, "99.999 %"), (0.9995, "99.95 %"), (None, None)]
)
def test_a_share_is_never_rounded_up(share: float | None, text: str | None) -> None:
    """A hundred per cent is said of nothing less."""
    assert percent(share) == text
