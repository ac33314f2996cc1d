"""The infrastructure contract and CPU weights of a real mesh: declared by a commit, measured,
alarmed, and acted upon.
"""

import ctypes
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.infrastructure import RESOURCES
from mortise import generated as errors
from mortise.throwaway import Mesh
from services.jobs.bench_packs import sleepy
from services.jobs.pack_writer import write_pack
from supervisor import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "bench"
INPUT = {"x": [[2.0]]}
ON_BOTH = '[[policy.spec.versions]]\nversion = "1"\nreplicas = 2\n'
PR_CAPBSET_DROP, CAP_SYS_NICE = 24, 23
"""Source: prctl(2), capabilities(7)."""
wait_s_max = 40.0


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """The bench home with two runtimes, on both of which its models and an unrouted one lie."""
    home = tmp_path_factory.mktemp("home") / "home"
    shutil.copytree(EXAMPLE, home, ignore=shutil.ignore_patterns(".mortise"))
    settings = (home / "mortise.toml").read_text()
    (home / "mortise.toml").write_text(settings.replace("replicas = 1", "replicas = 2"))
    usual = sleepy()
    spare = replace(usual, contract=msgspec.structs.replace(usual.contract, name="spare"))
    digest = write_pack(spare, home / "models")
    text = (home / "policies.toml").read_text()
    text = text.replace('[[policy.spec.versions]]\nversion = "1"\n\n', ON_BOTH + "\n")
    text += '\n[[policy]]\nkind = "model"\nname = "spare"\n[[policy.spec.versions]]\n'
    text += f'version = "1"\ndigest = "{digest}"\n'
    text += f'\n[[policy]]\nkind = "deployment"\nname = "spare"\n{ON_BOTH}'
    (home / "policies.toml").write_text(text)
    with Mesh(home) as running:
        yield running


def apply(mesh: Mesh, kind: str, spec: dict[str, Any]) -> None:
    """One commit of the policy for everybody, active everywhere."""
    policy = {"kind": kind, "name": "*", "spec": spec}
    with mesh.client("control_plane") as control_plane:
        control_plane.call("apply", {"policies": [policy], "author": "test", "reason": "test"})


def terms(service: str, **spec: Any) -> dict[str, Any]:
    """An `sla` policy's spec with terms for one service."""
    return {"infrastructure": {service: spec}}


def rows(mesh: Mesh, service: str) -> list[dict[str, Any]]:
    """The places of a service as `status` has them, by index."""
    found = run.status(mesh.home)["children"]
    return [row for row in found if row["service"] == service]


def wait_for(condition: Callable[[], bool]) -> None:
    """Until it holds."""
    ends_s = time.monotonic() + wait_s_max
    while not condition():
        assert time.monotonic() < ends_s, "it did not happen in time"
        time.sleep(0.1)


def records(mesh: Mesh, event: str) -> list[dict[str, Any]]:
    """The supervisor's records of one kind."""
    text = (mesh.home / ".mortise" / "log" / "supervisor.0.jsonl").read_text()
    return [found for line in text.splitlines() if (found := json.loads(line))["event"] == event]


def scraped(mesh: Mesh) -> list[str]:
    """The lines of one scrape."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(mesh.home / ".mortise" / "run" / "metrics.sock"))
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        with sock.makefile("rb") as file:
            return file.read().decode().splitlines()


def test_every_resource_is_measured_beside_its_limit(mesh: Mesh) -> None:
    """In `status` and in the scrape, of every process; nothing is alarmed by default."""
    wait_for(lambda: all(row["infrastructure"] for row in run.status(mesh.home)["children"]))
    wait_for(lambda: rows(mesh, "orchestrator")[0]["infrastructure"]["cpu"]["used"] is not None)
    for row in run.status(mesh.home)["children"]:
        found = row["infrastructure"]
        assert set(found) == set(RESOURCES)
        assert found["memory"]["used"] > 10.0
        assert found["descriptors"]["used"] > 5.0
        assert not any(one["alarm"] for name, one in found.items() if name != "cpu")
    lines = scraped(mesh)
    unmeasured = run.status(mesh.home)["unmeasured"]
    assert "GPU" in unmeasured["gpu_memory"]
    is_counted = any("ai_infrastructure_cache_misses_total" in line for line in lines)
    assert is_counted is not bool(unmeasured.get("cache_misses")), "counted, or the reason why not"
    for name in ("used", "limit", "alarm"):
        wanted = f'ai_infrastructure_{name}{{replica="0",resource="memory",service="orchestrator"}}'
        assert any(line.startswith(wanted) for line in lines), wanted


def test_short_memory_sheds_the_declared_classes_until_there_is_more(mesh: Mesh) -> None:
    """Over 85 % of what the policy declares: class 3 is refused with the reason, 1 and 2 are
    answered; a higher limit ends it."""
    apply(mesh, "sla", terms("orchestrator", memory_mib_max=8, memory_reaction="shed"))
    with mesh.client() as client:
        wait_for(lambda: "memory is short" in str(client.call("health")["reasons"]))
        with pytest.raises(errors.Overloaded, match="memory_mib_max is 8") as shed:
            client.infer("sleepy", inputs=INPUT, risk_level=3)
        assert shed.value.details == {"reason": "memory"}
        for risk_level in (1, 2):
            assert client.infer("sleepy", inputs=INPUT, risk_level=risk_level).variant == "default"
        (row,) = rows(mesh, "orchestrator")
        assert row["infrastructure"]["memory"]["alarm"]
        assert "memory_mib_max is 8" in row["alarms"][0]
        wait_for(lambda: bool(records(mesh, "infrastructure_alarm")))
        alarm = records(mesh, "infrastructure_alarm")[-1]
        assert (alarm["resource"], alarm["limit"]) == ("memory", "memory_mib_max 8")
        assert alarm["received"] > 8
        assert "declare more" in alarm["remedy"]
        apply(mesh, "sla", terms("orchestrator", memory_mib_max=4_096))
        wait_for(lambda: not client.call("health")["reasons"])
        assert client.infer("sleepy", inputs=INPUT, risk_level=3).variant == "default"
        assert client.call("statistics")["values"]["memory_shed"] == 1
    wait_for(lambda: bool(records(mesh, "infrastructure_alarm_over")))


def test_short_memory_unloads_what_no_route_reaches(mesh: Mesh) -> None:
    """`spare` goes from both runtimes, the routed models stay and answer; the next commit loads it
    again."""

    def state(service_index: int) -> dict[str, str]:
        return {row["name"]: row["state"] for row in held(mesh, service_index)}

    for found in (state(0), state(1)):
        assert {"spare", "sleepy", "tiny"} <= set(found)
        assert set(found.values()) == {"ready"}
    apply(mesh, "sla", terms("model_runtime", memory_mib_max=16, memory_reaction="unload"))
    wait_for(lambda: state(0)["spare"] == state(1)["spare"] == "failed")
    spare = next(row for row in held(mesh, 0) if row["name"] == "spare")
    assert "no route reaches it and memory is short" in spare["reason"]
    assert state(0)["sleepy"] == state(0)["tiny"] == "ready"
    with mesh.client() as client:
        assert client.infer("sleepy", inputs=INPUT).variant == "default"
    apply(mesh, "sla", {})
    wait_for(lambda: state(0)["spare"] == state(1)["spare"] == "ready")


def held(mesh: Mesh, index: int) -> list[dict[str, Any]]:
    """What a runtime holds."""
    with mesh.client(f"model_runtime.{index}") as client:
        models: list[dict[str, Any]] = client.call("models")["models"]
        return models


def test_a_bulk_runtime_is_scheduled_as_its_class_says(mesh: Mesh) -> None:
    """Runtime 1 is reserved for class 1, runtime 0 serves the rest: at weight 1 every thread of it
    is SCHED_IDLE, and none of the other's; without weights it is ordinary again. The answers come
    from both."""
    weights = {"1": 100, "2": 1, "3": 1}
    apply(mesh, "priority", {"reserved_replicas": {"1": 1}, "cpu_weights": weights})
    wait_for(lambda: scheduling(mesh, 0) == {os.SCHED_IDLE})
    assert scheduling(mesh, 1) == {os.SCHED_OTHER}
    bulk, reserved = rows(mesh, "model_runtime")
    assert bulk["cpu_weight"].startswith("cpu weight 1: SCHED_IDLE (cgroup v2")
    assert reserved["cpu_weight"] == ""
    with mesh.client() as client:
        for risk_level in (1, 3):
            assert client.infer("sleepy", inputs=INPUT, risk_level=risk_level).variant == "default"
    apply(mesh, "priority", {})
    wait_for(lambda: scheduling(mesh, 0) == {os.SCHED_OTHER})


def test_without_a_privilege_a_runtime_comes_up_again_as_a_new_process() -> None:
    """Who may not leave SCHED_IDLE is replaced, make before break: a client that asks all the time
    is always answered."""
    with ThreadPoolExecutor(1) as thread:
        # The thread that starts the mesh has lost the capability; it is the mesh's parent.
        thread.submit(ctypes.CDLL(None).prctl, PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0).result()
        mesh = Mesh(EXAMPLE)
        thread.submit(mesh.__enter__).result()
        try:
            apply(mesh, "priority", {"cpu_weights": {"1": 1, "2": 1, "3": 1}})
            wait_for(lambda: scheduling(mesh, 0) == {os.SCHED_IDLE})
            before = rows(mesh, "model_runtime")[0]["pid"]
            apply(mesh, "priority", {})
            with mesh.client() as client:

                def is_ordinary() -> bool:
                    assert client.infer("sleepy", inputs=INPUT).variant == "default"
                    return scheduling(mesh, 0) == {os.SCHED_OTHER}

                wait_for(is_ordinary)
            (row,) = rows(mesh, "model_runtime")
            assert (row["pid"] != before, row["restarts"], row["cpu_weight"]) == (True, 0, "")
        finally:
            thread.submit(mesh.__exit__, None, None, None).result()


def scheduling(mesh: Mesh, index: int) -> set[int]:
    """The kernel's scheduling policies of a runtime's threads."""
    pid = rows(mesh, "model_runtime")[index]["pid"]
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return {os.sched_getscheduler(int(thread)) for thread in threads}
    except (FileNotFoundError, ProcessLookupError):
        return set()  # it is being replaced
