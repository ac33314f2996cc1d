"""The hot path as machine code: built from these sources, and what the processes really run."""

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import msgpack
import pytest

from mortise.throwaway import Mesh
from shared.compiled import INTERPRETED, PLACE, Build

ROOT = Path(__file__).parents[2]
X = {"name": "x", "datatype": "FP32", "shape": [1, 64], "data": bytes(256)}
FLIGHT = {
    "scheduled_at": "2013-12-20T22:45:00Z", "carrier": "EV", "flight": 4411, "tailnum": "N13566",
    "origin": "EWR", "dest": "MEM", "distance_mi": 946, "sched_dep_local": 1745,
}  # fmt: skip
NEEDED = Path(sysconfig.get_path("include")) / "Python.h"
pytestmark = [
    pytest.mark.skipif(
        shutil.which("cc") is None or not NEEDED.exists(),
        reason="a C compiler and Python's headers are needed to compile the hot path",
    ),
    pytest.mark.timeout(900),  # a build takes a minute on a quiet machine
]


def job(*options: str) -> list[dict[str, object]]:
    """Run the compile job; its progress."""
    done = subprocess.run(
        [sys.executable, "-m", "services.jobs.compile", *options],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=900,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module", autouse=True)
def build() -> Build:
    """A current build, made when there is none."""
    job("--if-needed")
    found = Build.read(ROOT)
    assert found is not None
    return found


def test_a_current_build_is_kept(build: Build) -> None:
    """Nobody waits a minute for what is there."""
    assert [line["step"] for line in job("--if-needed")] == ["current"]
    assert build.fault(ROOT) is None


BODIES: tuple[Any, ...] = (
    {"model_name": "tiny", "inputs": [X], "id": "a", "tenant_id": "t", "risk_level": 1},
    {"model_name": "tiny", "inputs": [{**X, "shape": [3, 64], "data": bytes(3 * 256)}]},
    {"model_name": "tiny", "inputs": [{**X, "data": [0.5] * 64}], "outputs": ["y"]},
    {"model_name": "tiny", "inputs": [{**X, "data": [float("nan")] * 64}]},
    {"model_name": "tiny", "inputs": [{**X, "data": bytes(8)}]},
    {"model_name": "tiny", "inputs": [{**X, "name": "z"}]},
    {"model_name": "tiny", "inputs": [X], "outputs": ["none"]},
    {"model_name": "tiny", "model_version": "77", "inputs": [X]},
    {"model_name": "nobody", "inputs": [X]},
    {"model_name": "tiny", "inputs": [X], "explain": True},
    {"model_name": "tiny", "text": ["a"]},
    {"model_name": "tiny", "inputs": [X], "unknown": 1},
    {"model_name": 7},
    [],
)
PASSING = ("trace_id", "id", "timing_us")


def answers(home: Path) -> tuple[bool, list[Any]]:
    """Whether the orchestrator runs compiled, and what it says to each of `BODIES`."""
    with Mesh(home) as mesh:
        status = json.loads(
            subprocess.run(
                [sys.executable, "-m", "mortise", "status", "--json", "--home", str(mesh.home)],
                cwd=ROOT, capture_output=True, text=True, check=True,
            ).stdout
        )  # fmt: skip
        pids = [row["pid"] for row in status["children"] if row["service"] == "orchestrator"]
        maps = Path(f"/proc/{pids[0]}/maps").read_text()
        said = [raw_call(mesh.socket(), "infer", body) for body in BODIES]
    for answer in said:
        for part in answer[2:]:
            for name in PASSING if isinstance(part, dict) else ():
                part.pop(name, None)
    return str(PLACE) in maps, said


def raw_call(path: str, method: str, body: Any) -> list[Any]:
    """One request on a connection of its own, as bytes; the decoded response."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        client.connect(path)
        client.sendall(msgpack.packb([0, 1, method, [body]]))
        unpacker = msgpack.Unpacker()
        while True:
            unpacker.feed(client.recv(65_536))
            for message in unpacker:
                return list(message)


def test_the_same_answers_compiled_and_from_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer and every error is the same; only the way there differs."""
    is_compiled, from_build = answers(ROOT / "examples" / "bench")
    assert is_compiled
    monkeypatch.setenv(INTERPRETED, "1")
    is_compiled, from_source = answers(ROOT / "examples" / "bench")
    assert not is_compiled
    assert from_build == from_source
    assert sum(answer[2] is None for answer in from_build) == 3


FOLDERS = ("tests/simulation", "tests/unit/shared/rpc", "tests/unit/shared/wire",
           "tests/unit/services/orchestrator")  # fmt: skip


def test_the_tests_of_these_modules_pass_compiled() -> None:
    """The compiler checks types at run time that the interpreter only believes."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *FOLDERS],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "MORTISE_TEST_COMPILED": "1"},
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if not line.startswith("{")]  # no log records
    assert done.returncode == 0, "\n".join(said[-80:])
    assert " passed" in done.stdout


def test_a_classifier_of_a_view_answers_compiled() -> None:
    """The whole way with features and predictions: other fields than a tensor's."""
    with Mesh(ROOT / "examples" / "flights") as mesh:
        answer = raw_call(mesh.socket(), "infer", {"model_name": "delay", "rows": [FLIGHT]})
    assert answer[2] is None, answer[2]
    assert answer[3]["predictions"][0]["label"] in ("late", "on_time")
