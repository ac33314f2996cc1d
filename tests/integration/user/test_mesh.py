"""SDK, commands and pytest plugin against a running mesh of the bench home."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mortise
from mortise.throwaway import Mesh

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "examples/bench"

pytestmark = pytest.mark.parametrize("mesh", [BENCH], ids=["bench"], indirect=True)


def command(mesh: Mesh, *line: str) -> Any:
    """A `mortise` command as a user types it, its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "mortise", *line, "--home", str(mesh.home), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_array_goes_in_and_an_array_comes_out(mesh: Mesh) -> None:
    """`sleepy` doubles what it gets; shape and datatype are kept, and the answer is accounted."""
    rows = np.arange(5, dtype=np.float32).reshape(5, 1)
    with mesh.client() as client:
        result = client.infer("sleepy", inputs={"x": rows}, tenant_id="t", risk_level=1)
    np.testing.assert_array_equal(result.outputs["y"], 2 * rows)
    assert result.outputs["y"].dtype == np.float32
    assert (result.model_version, result.variant, result.usage.rows) == ("1", "default", 5)
    assert result.id == result.trace_id
    assert result.lineage.weights.startswith("sha256:")
    assert result.timing_us.forward > 0


async def test_a_text_beyond_the_wire_is_refused_by_its_limit(mesh: Mesh) -> None:
    """The server stops reading it and closes; both clients still learn which limit it was."""
    text = "x" * (8 * 1024 * 1024)
    with mesh.client() as client, pytest.raises(mortise.INVALID_REQUEST) as refusal:
        client.infer("sleepy", text=text)
    assert "frame_str_bytes_max=1048576" in refusal.value.message
    async with mortise.AsyncClient(home=mesh.home) as client:
        for _ in range(2):
            with pytest.raises(mortise.INVALID_REQUEST, match="frame_str_bytes_max"):
                await client.infer("sleepy", text=text)
        assert (await client.infer("sleepy", inputs={"x": [[1.0]]})).outputs["y"][0, 0] == 2.0


async def test_many_asynchronous_calls_get_their_own_answers(mesh: Mesh) -> None:
    """A hundred at once over one connection."""
    async with mortise.AsyncClient(home=mesh.home) as client:
        calls = [client.infer("sleepy", inputs={"x": [[float(n)]]}) for n in range(100)]
        results = await asyncio.gather(*calls)
    assert [result.outputs["y"][0, 0] for result in results] == [2.0 * n for n in range(100)]


REFUSED: dict[str, tuple[dict[str, Any], type[mortise.MortiseError]]] = {
    "no such model": ({"model": "nobody", "inputs": {"x": [[1.0]]}}, mortise.MODEL_UNKNOWN),
    "wrong shape": ({"model": "tiny", "inputs": {"x": [[1.0]]}}, mortise.INVALID_REQUEST),
    "wrong name": ({"model": "sleepy", "inputs": {"z": [[1.0]]}}, mortise.INVALID_REQUEST),
    "unknown field": (
        {"model": "sleepy", "inputs": {"x": [[1.0]]}, "nonsense": 1},
        mortise.INVALID_REQUEST,
    ),
    "explain": (
        {"model": "sleepy", "inputs": {"x": [[1.0]]}, "explain": True},
        mortise.INVALID_REQUEST,
    ),
    "nothing": ({"model": "sleepy"}, mortise.INVALID_REQUEST),
}


@pytest.mark.parametrize(("request_", "kind"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_an_exception_of_its_name(
    mesh: Mesh, request_: dict[str, Any], kind: type[mortise.MortiseError]
) -> None:
    """With the message of the service and a trace id."""
    with mesh.client() as client, pytest.raises(kind) as caught:
        client.infer(**request_)
    assert len(caught.value.trace_id) == 32
    assert caught.value.message


def test_every_service_keeps_its_contract(mesh: Mesh, contract: Callable[..., None]) -> None:
    """The conformance checks, as a user's own CI runs them."""
    contract()


def test_the_commands_tell_the_same_story(mesh: Mesh) -> None:
    """Status, models, policies, log of commits, chain, trace and snapshot agree on one answer."""
    answer = command(mesh, "infer", "sleepy", "--inputs", '{"x": [[1.5]]}', "--tenant", "t")
    assert answer["outputs"][0]["data"] == [3.0]
    status = command(mesh, "status")
    assert {child["service"] for child in status["children"]} == {
        "orchestrator", "control_plane", "data_fabric", "model_runtime",
    }  # fmt: skip
    models = {row["name"]: row for row in command(mesh, "models")["models"]}
    assert models["sleepy"]["state"] == "ready"
    policies = command(mesh, "policies")
    assert policies["version"] == answer["policy_version"] == 1
    assert [commit["version"] for commit in command(mesh, "commits")["commits"]] == [1]
    assert command(mesh, "verify")["valid"] is True
    snapshot = command(mesh, "snapshot", "--model", "sleepy")
    assert snapshot["versions"]["sleepy"]["policy"] == answer["lineage"]["policy"]
    trace = _trace(mesh, answer["trace_id"])
    assert trace["combination"]["lineage"] == answer["lineage"]
    assert (trace["tenant_id"], trace["status"], trace["answers"]) == ("t", "ok", 1)


def test_a_policy_is_applied_and_rolled_back(mesh: Mesh, tmp_path: Path) -> None:
    """Commit, difference, rollback: each a new version with its commit."""
    before = command(mesh, "policies")["version"]
    (tmp_path / "p.json").write_text(
        json.dumps([{"kind": "batching", "name": "tiny", "spec": {"wait_ms": 3.0}}])
    )
    applied = command(mesh, "apply", str(tmp_path / "p.json"), "--reason", "faster")
    assert (applied["version"], applied["changed"]) == (before + 1, True)
    again = command(mesh, "apply", str(tmp_path / "p.json"), "--reason", "faster")
    assert again == {**applied, "changed": False}
    (change,) = command(mesh, "diff", str(before), str(before + 1))["differences"]
    assert (change["kind"], change["name"], change["before"]) == ("batching", "tiny", None)
    restored = command(mesh, "rollback", "--to", str(before))
    assert restored["version"] == before + 2
    assert command(mesh, "diff", str(before), str(before + 2))["differences"] == []


def test_a_version_conflict_says_so(mesh: Mesh, tmp_path: Path) -> None:
    """`--expected-version` of an old version: exit 1, the error's name and its remedy."""
    (tmp_path / "p.json").write_text(
        json.dumps([{"kind": "batching", "name": "tiny", "spec": {"wait_ms": 3.0}}])
    )
    line = ["apply", str(tmp_path / "p.json"), "--expected-version", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "mortise", *line, "--home", str(mesh.home)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "VERSION_CONFLICT" in done.stderr
    assert "mortise commits" in done.stderr


def test_one_retry_hides_a_killed_service(mesh: Mesh) -> None:
    """The orchestrator is killed between two calls of one client: the second is answered."""
    with mesh.client() as client:
        client.infer("sleepy", inputs={"x": [[1.0]]})
        children = command(mesh, "status")["children"]
        (pid,) = [child["pid"] for child in children if child["service"] == "orchestrator"]
        os.kill(pid, 9)
        assert client.infer("sleepy", inputs={"x": [[2.0]]}).outputs["y"][0, 0] == 4.0


def test_logs_tell_of_the_restart(mesh: Mesh) -> None:
    """The records of all processes are merged; an instance is named in each."""
    done = subprocess.run(
        [sys.executable, "-m", "mortise", "logs", "--home", str(mesh.home), "--json"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert {"orchestrator", "model_runtime"} <= {record.get("service") for record in records}


def _trace(mesh: Mesh, trace_id: str) -> Any:
    """The trace; its receipt is on the way for a moment."""
    ends_s = time.monotonic() + 10.0
    with mesh.client("control_plane") as client:
        while True:
            try:
                client.call("trace", {"trace_id": trace_id})
                return command(mesh, "trace", trace_id)
            except mortise.TRACE_UNKNOWN:
                assert time.monotonic() < ends_s, "the receipt did not arrive"
                time.sleep(0.05)
