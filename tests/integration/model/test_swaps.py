"""Swapping a model while it serves: nothing fails, nothing is mixed, the old one serves until the
new one does. `make swaps` does 100 at 1,000 requests a second."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import mortise
from benchmarks.misbehaving import mesh_with, slow
from benchmarks.swaps import SLOPE_KIB_MAX, WARM_SWAPS, other_tiny, run_swaps
from contracts.pack import Architecture
from contracts.types import UNSET
from mortise.throwaway import Mesh
from services.jobs.pack_writer import Draft, write_pack
from shared.packs import pack_path
from supervisor import run

SWAPS = WARM_SWAPS + 10
RATE_PER_S = 200.0
LONG_ROWS = 32
"""Two seconds of `slow`."""
STANDBY_S_MAX = 30.0


def patient(factor: float) -> Draft:
    """`slow` without a promise, so that two seconds are within its limit; times `factor`."""
    draft = slow()
    configuration = {**draft.architecture.configuration, "factor": factor}
    return replace(
        draft,
        contract=msgspec.structs.replace(draft.contract, p99_ms=UNSET),
        architecture=Architecture(name="sleepy", configuration=configuration),
    )


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """The bench home with a model that takes its time."""
    with mesh_with(tmp_path_factory.mktemp("home"), [patient(2.0)]) as mesh:
        yield mesh


def publish(mesh: Mesh, draft: Draft) -> tuple[str, str]:
    """The version that a pack gets, and its digest."""
    digest = write_pack(draft, mesh.home / "models")
    with mesh.client("control_plane") as control:
        return control.call("publish", {"digest": digest}).version, digest


def promote(mesh: Mesh, model: str, version: str) -> None:
    """As an operator does."""
    with mesh.client("control_plane") as control:
        control.call("promote", {"model": model, "version": version}, timeout_s=60)


def test_swaps_under_load_fail_nothing_and_mix_nothing() -> None:
    """Every answer's version, weights digest and numbers belong together; memory stays."""
    found = run_swaps(SWAPS, RATE_PER_S)
    assert (found["failures"], found["mixed"]) == ({}, 0)
    assert found["versions_that_answered"] == 1 + SWAPS // 2
    assert found["private_kib_per_swap"] < SLOPE_KIB_MAX


def test_a_swap_while_a_2_s_call_runs_ends_on_the_old_one(mesh: Mesh) -> None:
    """The call that began before is answered by the version it began with, the next by the new."""
    version, _ = publish(mesh, patient(3.0))
    ended: list[Any] = []

    def call() -> None:
        with mesh.client() as client:
            x = np.ones((LONG_ROWS, 1), np.float32)
            ended.append(client.infer("slow", inputs={"x": x}, timeout_s=30))

    thread = threading.Thread(target=call)
    thread.start()
    promote(mesh, "slow", version)
    thread.join(30)
    (old,) = ended
    assert old.model_version == "1"
    assert set(old.outputs["y"][:, 0].tolist()) == {2.0}
    with mesh.client() as client:
        new = client.infer("slow", inputs={"x": [[1.0]]})
    assert (new.model_version, new.outputs["y"][0, 0]) == (version, 3.0)


def orchestrator_with_standby(mesh: Mesh) -> int:
    """The process that serves, once another one stands ready."""
    ends_s = time.monotonic() + STANDBY_S_MAX
    while time.monotonic() < ends_s:
        rows = run.status(mesh.home)["children"]
        row = next(row for row in rows if row["service"] == "orchestrator")
        if row["ready"] and (row["standby"] or {}).get("state") == "ready":
            return int(row["pid"])
        time.sleep(0.05)
    raise AssertionError(f"no standby within {STANDBY_S_MAX} s")


def test_an_orchestrator_killed_right_after_a_swap_leaves_it_to_its_successor(mesh: Mesh) -> None:
    """The standby has not heard of the swap yet: it puts in force what lies on the disk, before
    its first answer."""
    version, _ = publish(mesh, patient(5.0))
    for target in (version, "1", version):
        pid = orchestrator_with_standby(mesh)
        promote(mesh, "slow", target)
        os.kill(pid, signal.SIGKILL)
        with mesh.client() as client:
            found = [client.infer("slow", inputs={"x": [[1.0]]}) for _ in range(5)]
        assert [answer.model_version for answer in found] == [target] * 5


def test_a_swap_whose_load_fails_leaves_the_old_serving(mesh: Mesh) -> None:
    """A pack that was altered after it was published is refused by the runtime that loads it."""
    version, digest = publish(mesh, other_tiny())
    weights = Path(pack_path(mesh.home / "models", digest)) / "weights.safetensors"
    weights.chmod(0o644)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(mortise.MortiseError):
        promote(mesh, "tiny", version)
    with mesh.client() as client:
        answer = client.infer("tiny", inputs={"x": np.ones((1, 64), np.float32)})
    assert answer.model_version == "1"
