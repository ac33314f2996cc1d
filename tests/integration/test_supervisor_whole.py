"""One toy mesh under load: kills, template, planned replacement, metrics, a second start."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from benchmarks.steady_load import Outcome, SteadyLoad, ping
from supervisor import run
from tests.integration.toys.harness import ROOT, ToyMesh, kill, living, state

SERVICES = ("orchestrator", "model_runtime", "data_fabric", "control_plane")
RATE_PER_S = 50.0
WARM_S_MAX = 0.5
"""A take-over by a standby, under this load on a shared machine; the aim of 0.1 s is measured by
`benchmarks/kill_matrix.py`."""


@pytest.fixture(scope="module")
def mesh() -> Iterator[ToyMesh]:
    """Four toys as the real ones are specified: standbys, a template, a lone control plane."""
    with ToyMesh(
        {
            "control_plane": {"overlaps": False},
            "data_fabric": {"standby": True},
            "model_runtime": {"standby": True, "forked": True, "memory_mib_max": 1_024},
            "orchestrator": {"standby": True},
        },
    ) as made:
        made.wait_whole()
        yield made


def socket_of(mesh: ToyMesh, service: str) -> str:
    """Where the service listens."""
    name = f"{service}.0.sock" if service == "model_runtime" else f"{service}.sock"
    return str(mesh.home / ".mortise" / "run" / name)


async def under_load(mesh: ToyMesh, act: Callable[[], Awaitable[None]]) -> dict[str, Outcome]:
    """Ping all four at `RATE_PER_S` while `act` runs."""
    loads = {
        service: SteadyLoad(socket_of(mesh, service), ping, rate_per_s=RATE_PER_S, connections=4)
        for service in SERVICES
    }
    async with AsyncExitStack() as stack:
        for load in loads.values():
            await stack.enter_async_context(load)
        await asyncio.sleep(0.1)
        await act()
        await asyncio.sleep(0.2)
    return {service: load.outcome for service, load in loads.items()}


@pytest.mark.parametrize("service", SERVICES)
async def test_a_killed_child_refuses_nobody(mesh: ToyMesh, service: str) -> None:
    """kill -9 of one child under load: nobody is refused, nobody fails after one retry, and the
    other three do not notice."""
    mesh.wait_whole()
    pid = mesh.child(service)["pid"]

    async def act() -> None:
        kill(pid, signal.SIGKILL)
        if service == "control_plane":  # alone in having no standby: its absence is told at once
            await asyncio.to_thread(mesh.wait_for, lambda: not mesh.child(service)["ready"], 1.0)
        await asyncio.to_thread(
            mesh.wait_for, lambda: mesh.child(service)["pid"] not in (None, pid)
        )
        await asyncio.to_thread(mesh.wait_for, lambda: mesh.child(service)["ready"])

    outcomes = await under_load(mesh, act)
    for name, outcome in outcomes.items():
        assert outcome.sent > 5
        assert (outcome.refused, outcome.failures) == (0, {}), name
        assert name == service or outcome.retried == 0, name
    if service != "control_plane":
        assert outcomes[service].quantile_ms(1.0) < WARM_S_MAX * 1e3


@pytest.mark.parametrize("service", SERVICES)
async def test_a_planned_replacement_is_not_noticed(mesh: ToyMesh, service: str) -> None:
    """`restart` under load: the successor is another process, no request fails, and afterwards
    there are as many processes as before."""
    await asyncio.to_thread(mesh.wait_whole)
    before, count = mesh.child(service), len(mesh.processes())

    async def act() -> None:
        pid = await asyncio.to_thread(run.restart, mesh.home, service)
        assert pid not in (None, before["pid"])

    outcomes = await under_load(mesh, act)
    for name, outcome in outcomes.items():
        assert (outcome.refused, outcome.failures) == (0, {}), name
    assert mesh.child(service)["restarts"] == before["restarts"], "a planned end is no failure"
    await asyncio.to_thread(mesh.wait_whole)
    await asyncio.to_thread(mesh.wait_for, lambda: len(mesh.processes()) == count)


def test_a_killed_template_costs_nothing(mesh: ToyMesh) -> None:
    """kill -9 of the template: every runtime lives on, and a new template is made."""
    mesh.wait_whole()
    template_pid = mesh.status()["template_pid"]
    row = mesh.child("model_runtime")
    kill(template_pid, signal.SIGKILL)
    mesh.wait_for(lambda: mesh.status()["template_pid"] not in (None, template_pid))
    after = mesh.child("model_runtime")
    assert (after["pid"], after["standby"]) == (row["pid"], row["standby"])
    assert state(row["pid"]) in "SR"


def test_a_stopped_template_costs_nothing(mesh: ToyMesh) -> None:
    """SIGSTOP of the template: the standby takes over from a killed runtime all the same, and the
    template is replaced."""
    mesh.wait_whole()
    template_pid = mesh.status()["template_pid"]
    row = mesh.child("model_runtime")
    kill(template_pid, signal.SIGSTOP)
    kill(row["pid"], signal.SIGKILL)
    mesh.wait_for(lambda: mesh.child("model_runtime")["pid"] == row["standby"]["pid"], 2.0)
    mesh.wait_for(lambda: mesh.status()["template_pid"] not in (None, template_pid))
    mesh.wait_whole()


def test_a_stopped_child_is_replaced(mesh: ToyMesh) -> None:
    """SIGSTOP: a child that is alive but silent is killed, and its standby takes over."""
    mesh.wait_whole()
    pid = mesh.child("data_fabric")["pid"]
    kill(pid, signal.SIGSTOP)
    took_s = mesh.wait_for(lambda: mesh.child("data_fabric")["pid"] not in (None, pid))
    assert took_s < 5.0
    assert "stopped for" in mesh.child("data_fabric")["last_ending"]


def test_a_stopped_supervisor_judges_nobody(mesh: ToyMesh) -> None:
    """After the supervisor itself stood still, every child gets a fresh grace period."""
    mesh.wait_whole()
    before = {row["service"]: row["pid"] for row in mesh.status()["children"]}
    stood_still = sum(record["event"] == "time_lost" for record in mesh.records("supervisor"))
    kill(mesh.pid, signal.SIGSTOP)
    time.sleep(2.6)
    kill(mesh.pid, signal.SIGCONT)
    mesh.wait_for(
        lambda: sum(r["event"] == "time_lost" for r in mesh.records("supervisor")) > stood_still
    )
    after = {row["service"]: row["pid"] for row in mesh.status()["children"]}
    assert after == before


def test_a_second_start_names_the_first(mesh: ToyMesh) -> None:
    """`start` twice in one home: the second says who runs it and fails, the first is untouched."""
    before = mesh.status()
    second = subprocess.run(
        [sys.executable, "-m", "supervisor", "start", "--home", mesh.home],
        cwd=ROOT, capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert second.returncode == 1
    assert f"pid {mesh.pid}" in second.stderr
    after = mesh.status()
    assert after["pid"] == before["pid"]
    assert [row["pid"] for row in after["children"]] == [row["pid"] for row in before["children"]]


def test_the_scrape_speaks_for_every_child(mesh: ToyMesh) -> None:
    """metrics.sock answers HTTP with one text for all processes."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        sock.connect(str(mesh.home / ".mortise" / "run" / "metrics.sock"))
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: local\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(65536), b"")).decode()
    assert answer.startswith("HTTP/1.1 200 OK")
    for service in SERVICES:
        assert re.search(rf'ai_child_up{{.*service="{service}".*}} 1\.0', answer)


def test_the_run_directory_is_the_owners(mesh: ToyMesh) -> None:
    """The run directory is 0700 and every socket in it 0600."""
    run_dir = mesh.home / ".mortise" / "run"
    assert run_dir.stat().st_mode & 0o777 == 0o700
    sockets = list(run_dir.glob("*.sock"))
    assert len(sockets) == 6
    assert {path.stat().st_mode & 0o777 for path in sockets} == {0o600}


def test_children_are_hardened(mesh: ToyMesh) -> None:
    """Every child has its own session, no_new_privs and no core files, is the supervisor's own
    child though the template forked it, and a runtime has its memory limit."""
    mesh.wait_whole()
    status = mesh.status()
    rows = status["children"]
    standbys = [row["standby"]["pid"] for row in rows if row["standby"]]
    workers = {row["pid"] for row in rows if row["service"] == "model_runtime"}
    pids = [status["template_pid"], *(row["pid"] for row in rows), *standbys]
    assert len(pids) == 8
    for pid in [mesh.pid, *pids]:
        facts = Path(f"/proc/{pid}/status").read_text()
        assert "NoNewPrivs:\t1" in facts
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert re.search(r"Max core file size\s+0\s", limits)
        if os.geteuid() == 0:  # others may read their own alone
            assert Path(f"/proc/{pid}/timerslack_ns").read_text() == "1000\n"
        if pid == mesh.pid:
            continue
        assert f"PPid:\t{mesh.pid}\n" in facts, "adopted by the supervisor"
        assert pid not in workers or re.search(rf"Max data size\s+{2**30}\s", limits)
        session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3]
        assert session == str(pid)


def test_records_of_an_operation_share_its_trace_id(mesh: ToyMesh) -> None:
    """From an exit to the next standby, and from a restart to its end: one trace id leads through
    the records of the supervisor and of the service."""
    mesh.wait_whole()
    pid = mesh.child("orchestrator")["pid"]
    kill(pid, signal.SIGKILL)
    mesh.wait_for(lambda: mesh.child("orchestrator")["pid"] not in (None, pid))
    mesh.wait_whole()

    def events(trace_id: str) -> list[str]:
        records = mesh.records("supervisor") + mesh.records("orchestrator")
        return [record["event"] for record in records if record.get("trace_id") == trace_id]

    exits = [row for row in mesh.records("supervisor") if row["event"] == "child_exited"]
    trace_id = next(row["trace_id"] for row in exits if row["pid"] == pid)
    wanted = {"child_exited", "standby_promoted", "standby_ready", "promoted", "ready"}
    mesh.wait_for(lambda: wanted <= set(events(trace_id)))


def test_stop_drains_and_leaves_nothing(mesh: ToyMesh) -> None:
    """`stop` ends every process and removes every socket; runs last in this module."""
    mesh.wait_whole()
    pids = mesh.processes()
    assert run.stop(mesh.home) == 0
    assert mesh.process is not None
    assert mesh.process.wait(5) == 0
    assert not set(pids) & set(living())
    assert not list((mesh.home / ".mortise" / "run").glob("*.sock"))
    assert run.status(mesh.home)["running"] is False
