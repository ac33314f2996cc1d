"""The flights example as a user meets it, from `init` to a prediction with its lineage."""

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mortise import Client

ROOT = Path(__file__).parents[3]
FLIGHT = {
    "scheduled_at": "2013-12-20T22:45:00Z", "carrier": "EV", "flight": 4411, "tailnum": "N13566",
    "origin": "EWR", "dest": "MEM", "distance_mi": 946, "sched_dep_local": 1745,
}  # fmt: skip
DIGESTS = ("data", "feature_code", "certificate", "weights", "policy")
pytestmark = pytest.mark.timeout(300)


def mortise(*line: str | Path) -> subprocess.CompletedProcess[str]:
    """A command as a user types it, outside the checkout."""
    command = [sys.executable, "-P", "-m", "mortise", *line]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, check=False, timeout=200
    )


def infer(home: Path, row: dict[str, Any]) -> dict[str, Any]:
    """One prediction, as JSON."""
    done = mortise("infer", "delay", "--rows", json.dumps([row]), "--home", home, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A short temporary folder; whatever mesh runs in it is stopped."""
    path = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    yield path
    for home in path.glob("*/mortise.toml"):
        mortise("stop", "--home", home.parent)
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def home(folder: Path) -> Path:
    """A flights home that was made and started by the commands."""
    path = folder / "flights"
    made = mortise("init", path, "--example", "flights")
    assert made.returncode == 0, made.stderr
    started = mortise("start", "--detach", "--home", path)
    assert started.returncode == 0, started.stdout + started.stderr
    assert "orchestrator.sock" in started.stdout
    return path


def test_a_flight_gets_an_accountable_prediction(home: Path) -> None:
    """Label, probabilities, action of the risk rules, stage times, hops and every digest."""
    answer = infer(home, FLIGHT)
    (prediction,) = answer["predictions"]
    assert prediction["label"] in ("late", "on_time")
    assert abs(sum(prediction["probabilities"].values()) - 1.0) < 1e-6
    assert prediction["action"]
    assert all(answer["lineage"][name].startswith("sha256:") for name in DIGESTS)
    assert answer["freshness_s"] >= 0
    assert answer["timing_us"]["total"] > 0
    services = {hop["instance"].split(".")[0] for hop in answer["timing_us"]["hops"]}
    assert services == {"orchestrator", "data_fabric", "model_runtime"}


def test_the_answer_is_found_by_its_trace_id(home: Path) -> None:
    """`trace` names the same lineage; `logs --trace` and `status` answer too."""
    answer = infer(home, FLIGHT)
    ends_s = time.monotonic() + 10.0
    while (found := mortise("trace", answer["trace_id"], "--home", home, "--json")).returncode:
        assert time.monotonic() < ends_s, found.stderr
    trace = json.loads(found.stdout)
    assert trace["combination"]["lineage"] == answer["lineage"]
    assert trace["combination"]["view"] == "departure"
    assert mortise("logs", "--trace", answer["trace_id"], "--home", home).returncode == 0
    assert "orchestrator.0-" in mortise("status", "--home", home).stdout


def test_an_instant_is_the_same_in_every_form(home: Path) -> None:
    """A datetime of any zone, sent as a timestamp, gives what its RFC 3339 text gives."""
    instant = datetime.datetime.fromisoformat("2013-12-20T17:45:00-05:00")
    with Client(home=home) as client:
        answers = [
            client.infer("delay", rows=[FLIGHT | {"scheduled_at": form}])
            for form in (instant, instant.astimezone(datetime.UTC), instant.isoformat())
        ]
    expected = infer(home, FLIGHT)["predictions"]
    assert all(answer.to_builtin()["predictions"] == expected for answer in answers)


def test_ten_flights_become_a_table(home: Path) -> None:
    """The example client prints a line a flight, with stage times and lineage."""
    done = subprocess.run(
        [sys.executable, ROOT / "examples/flights/client.py", "--home", home],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\w\w \d+ .*0\.\d{3}", done.stdout, re.MULTILINE)) == 10
    for word in ("forward", "feature_code", "weights", "trace"):
        assert word in done.stdout


def test_a_bad_row_is_named_and_the_good_one_answered(home: Path) -> None:
    """The refusal says field, limit and value; exit code 1 only when nothing was answered."""
    bad = FLIGHT | {"origin": "XXX"}
    rows = json.dumps([bad, FLIGHT])
    done = mortise("infer", "delay", "--rows", rows, "--home", home, "--json")
    answer = json.loads(done.stdout)
    assert [item["status"] == "ok" for item in answer["items"]] == [False, True]
    assert len(answer["predictions"]) == 1
    refused = mortise("infer", "delay", "--rows", json.dumps([bad]), "--home", home)
    assert refused.returncode == 1
    assert "FEATURE_INVALID: " in refused.stderr
    assert "origin" in refused.stderr
    assert "XXX" in refused.stderr
    assert "mortise features show" in refused.stderr


def test_the_feature_contract_can_be_printed(home: Path) -> None:
    """`features show` has every column with its rule and source."""
    shown = mortise("features", "show", "departure", "--home", home).stdout
    for word in ("scheduled_at", "EWR, JFK, LGA", "airline schedule", "carrier_late_rate_14d"):
        assert word in shown


def test_a_copied_home_is_the_same_home(home: Path, folder: Path) -> None:
    """Copied to another path and started there, it answers the same under the same digests."""
    before = infer(home, FLIGHT)
    assert mortise("stop", "--home", home).returncode == 0
    copy = folder / "elsewhere"
    shutil.copytree(home, copy, symlinks=True, ignore=shutil.ignore_patterns("run"))
    started = mortise("start", "--detach", "--home", copy)
    assert started.returncode == 0, started.stdout + started.stderr
    after = infer(copy, FLIGHT)
    assert after["predictions"] == before["predictions"]
    assert after["lineage"] == before["lineage"]
    assert mortise("trace", before["trace_id"], "--home", copy).returncode == 0
