"""What the supervisor takes from outside: an allocator to preload, sockets from systemd."""

import os
import socket
import sys
from pathlib import Path

import msgpack
import pytest

from benchmarks.steady_load import ping
from supervisor import run
from supervisor.jemalloc import VARIABLE, find_jemalloc
from tests.integration.toys.harness import ToyMesh

CHILDREN = {"model_runtime": {"forked": True}, "orchestrator": {}}


def threads(pid: int) -> int:
    """How many a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))


def test_jemalloc_runs_in_every_child() -> None:
    """Where there is a jemalloc, each child has it; its background thread runs in the services,
    not in the template, which stays single-threaded."""
    library = find_jemalloc(os.environ)
    if library is None:
        pytest.skip("no libjemalloc.so.2 on this machine (apt install libjemalloc2)")
    with ToyMesh(CHILDREN) as mesh:
        template_pid = mesh.status()["template_pid"]
        for pid in mesh.processes():
            if pid == mesh.pid:
                continue
            assert Path(library).name in Path(f"/proc/{pid}/maps").read_text()
            assert (threads(pid) == 1) == (pid == template_pid)


def test_an_allocator_that_does_not_load_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The loader ignores a bad library; the log names it, and the mesh runs without."""
    library = tmp_path / "libjemalloc.so.2"
    library.write_text("not a library")
    monkeypatch.setenv(VARIABLE, str(library))
    with ToyMesh(CHILDREN) as mesh:
        mesh.wait_whole()
        mesh.wait_for(lambda: told(mesh) == {"model_runtime 0", "orchestrator 0"})


def told(mesh: ToyMesh) -> set[str]:
    """The children that the log says run without jemalloc."""
    records = mesh.records("supervisor")
    return {row["child"] for row in records if row["event"] == "jemalloc_not_loaded"}


def test_sockets_may_come_from_systemd() -> None:
    """A socket handed over by LISTEN_FDS is served where it is, and its path is not removed."""
    mesh = ToyMesh({"orchestrator": {}})
    path = mesh.home / ".mortise" / "run" / "orchestrator.sock"
    path.parent.mkdir(parents=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        listener.listen(8)
        take_over = (
            f"import os, sys; os.dup2({listener.fileno()}, 3);"
            "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()));"
            "os.execv(sys.argv[1], sys.argv[1:])"
        )
        mesh.launch(prefix=[sys.executable, "-c", take_over], keep=[listener.fileno()])
        mesh.wait_for(lambda: "try:" in mesh.output())
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(str(path))
            client.sendall(ping(7, 0))
            assert msgpack.unpackb(client.recv(64)) == [1, 7, None, {}]
        assert run.stop(mesh.home) == 0
        assert path.exists()
    finally:
        listener.close()
        mesh.end()
