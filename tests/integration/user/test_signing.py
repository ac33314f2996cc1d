"""Signing the contract of a running mesh, as owners and a publisher type it: sign, change a
promise, be refused, sign again, publish; with the control plane killed between."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.pack import Manifest
from contracts.page import digest_of
from mortise.throwaway import Mesh
from shared.packs import pack_digest, pack_path, read_manifest

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "examples/bench"
TINY = "sha256:edd78ff137d597bd287ac15b05d7d80be641efe2312bb91cf2c1ba2bdd1ab43e"
back_s_max = 30.0
POLICIES = """
[[policy]]
kind = "sla"
name = "*"
[policy.spec]
p99_ms = {p99_ms}
sign_offs = ["risk", "operations"]
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A bench home whose policies ask for two roles."""
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    home = Path(shutil.copytree(BENCH, folder / "h"))
    file = home / "policies.toml"
    file.write_text(file.read_text() + POLICIES.format(p99_ms=150.0))
    yield home
    shutil.rmtree(folder)


def retrained(home: Path, seed: int) -> str:
    """A pack of the same contract and weights, of another seed, staged in `models/`."""
    models = home / "models"
    manifest = read_manifest(models, TINY)
    provenance = msgspec.structs.replace(manifest.provenance, seed=seed)
    made: Manifest = msgspec.structs.replace(manifest, provenance=provenance)
    digest = pack_digest(made)
    folder = shutil.copytree(pack_path(models, TINY), pack_path(models, digest))
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_bytes(msgspec.json.encode(made))
    return digest


def mortise(mesh: Mesh, *line: str) -> tuple[int, dict[str, Any]]:
    """A command as a person types it: its exit code, and its JSON or its error."""
    done = subprocess.run(
        [sys.executable, "-m", "mortise", *line, "--home", str(mesh.home), "--json"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    text = done.stdout if done.returncode == 0 else done.stderr
    said: dict[str, Any] = json.loads(text)
    return done.returncode, said if done.returncode == 0 else said["error"]


def done(mesh: Mesh, *line: str) -> dict[str, Any]:
    """The same, which succeeds."""
    code, answer = mortise(mesh, *line)
    assert code == 0, answer
    return answer


def kill_the_control_plane(mesh: Mesh) -> None:
    """SIGKILL to its process; its successor answers when this returns."""
    rows = done(mesh, "status")["children"]
    (pid,) = [row["pid"] for row in rows if row["service"] == "control_plane"]
    os.kill(pid, signal.SIGKILL)
    ends_s = time.monotonic() + back_s_max
    while time.monotonic() < ends_s:
        code, answer = mortise(mesh, "verify")
        if code == 0:
            assert answer["valid"]
            return
        time.sleep(0.2)
    raise AssertionError("no control plane came back")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_changed_promise_is_signed_before_the_next_version(home: Path) -> None:
    """Published while the page is signed; refused after the SLA changed; published again after
    both roles signed. Sign-offs survive kill -9 and a rollback of everything."""
    with Mesh(home) as mesh:
        first = done(mesh, "contracts", "show")
        assert digest_of(first["page"]) == first["digest"]
        assert first["required"] == {"*": ["operations", "risk"]}
        second, third = (retrained(mesh.home, seed) for seed in (1, 2))
        code, refused = mortise(mesh, "publish", second)
        assert (code, refused["name"]) == (1, "POLICY_REJECTED")
        assert f"--role operations --digest {first['digest']}" in refused["message"]
        for role, author in (("risk", "ada"), ("operations", "bo")):
            line = ["contracts", "sign", "--role", role, "--author", author]
            assert done(mesh, *line, "--digest", first["digest"])["changed"]
            assert not done(mesh, *line)["changed"]
        kill_the_control_plane(mesh)
        assert done(mesh, "publish", second)["version"] == "2"
        before = done(mesh, "promote", "tiny", "2")["policy_version"]

        policies = mesh.home / "changed.toml"
        policies.write_text(POLICIES.format(p99_ms=120.0))
        done(mesh, "apply", str(policies))
        changed = done(mesh, "contracts", "show")
        assert changed["digest"] != first["digest"]
        assert changed["signed"] == []
        code, refused = mortise(mesh, "publish", third)
        assert (code, refused["name"]) == (1, "POLICY_REJECTED")
        assert "operations, risk" in refused["message"]
        code, stale = mortise(
            mesh, "contracts", "sign", "--role", "risk", "--digest", first["digest"]
        )
        assert (code, stale["name"]) == (1, "VERSION_CONFLICT")
        assert first["digest"] in stale["message"]
        assert changed["digest"] in stale["message"]

        done(mesh, "contracts", "sign", "--role", "risk", "--author", "ada")
        kill_the_control_plane(mesh)
        code, refused = mortise(mesh, "publish", third)
        assert "is not signed by operations;" in refused["message"]
        done(mesh, "contracts", "sign", "--role", "operations", "--author", "bo")
        assert done(mesh, "publish", third)["version"] == "3"

        done(mesh, "rollback", "--to", str(before))
        restored = done(mesh, "contracts", "show")
        assert restored["digest"] == first["digest"]
        signed = [(row["role"], row["author"]) for row in restored["signed"]]
        assert signed == [("risk", "ada"), ("operations", "bo")]
        commits = done(mesh, "commits")["commits"]
        assert [row["signed"]["role"] for row in commits if "signed" in row] == [
            "risk", "operations", "risk", "operations",
        ]  # fmt: skip
        with mesh.client() as client:
            assert client.infer("tiny", inputs={"x": [[0.0] * 64]}).model_version == "2"
