"""Starts and ends the servers, and counts the processor time of everything that each started."""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.table import Peer
from benchmarks.peers.truth import weights_path
from benchmarks.serving import cpu_s, run_generator, supervisor

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / "build" / "peers"
SERVERS = Path(__file__).parent / "servers"
EXAMPLE = ROOT / "examples" / "bench"
MARK = "MORTISE_PEER_RUN"
"""Inherited by all that a server starts, so that its daemons are found too."""
start_s_max = 90.0
stop_s_max = 10.0
_PROBE_S = 0.2
_REASON_CHARACTERS_MAX = 400
_PATH = re.compile(r"/\S+/\S+")


class NotStarted(Exception):
    """A server did not come up; the reason is its last words."""


class Server:
    """A started peer: where it listens, and its processes."""

    def __init__(self, peer: Peer, place: str, mark: str, supervisor_pid: int = 0) -> None:
        self.peer, self.place = peer, place
        self._mark, self._supervisor_pid = mark, supervisor_pid

    def target(self, model: str) -> dict[str, Any]:
        """What the generator needs to know."""
        peer = self.peer
        return {
            "protocol": peer.protocol,
            "socket": peer.socket,
            "place": self.place,
            "model": model,
            "path": peer.path.format(model=model),
            "envelope": peer.envelope,
            "weights": str(weights_path(EXAMPLE)),
        }

    def pids(self) -> list[int]:
        """Every process of it that runs now."""
        if self._supervisor_pid:
            return descendants(self._supervisor_pid)
        return marked(self._mark)

    def cpu_s(self) -> float:
        """Processor time that its living processes have used."""
        total = 0.0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                total += cpu_s(pid)
        return total


def marked(mark: str) -> list[int]:
    """Processes whose environment carries the mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(stat[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def generate(server: Server, model: str, kind: str, amount: int, seconds: float) -> dict[str, Any]:
    """One load; what its generator measured. Raises CalledProcessError or TimeoutExpired."""
    target = json.dumps(server.target(model))
    return run_generator("benchmarks.peers.generator", target, kind, amount, seconds)


@contextlib.contextmanager
def running(peer: Peer, windows_ms: dict[str, float] | None = None) -> Iterator[Server]:
    """The peer, started and answering both models. Raises NotStarted with the reason."""
    folder = Path(tempfile.mkdtemp(prefix="mop", dir="/tmp"))
    try:
        if peer.name == "mortise":
            with _mesh(peer, folder) as server:
                yield server
        else:
            with _process(peer, folder, peer.windows_ms | (windows_ms or {})) as server:
                yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _mesh(peer: Peer, folder: Path) -> Iterator[Server]:
    home = folder / "home"
    shutil.copytree(EXAMPLE, home)
    supervisor(home, "start", "--detach")
    try:
        pid = json.loads(supervisor(home, "status", "--json"))["pid"]
        yield Server(peer, str(home / ".mortise/run/orchestrator.sock"), "", pid)
    finally:
        supervisor(home, "stop")


@contextlib.contextmanager
def _process(peer: Peer, folder: Path, windows_ms: dict[str, float]) -> Iterator[Server]:
    python = INSTALLED / peer.name / "bin" / "python"
    if not python.exists():
        raise NotStarted(f"not installed: python -m benchmarks.peers.install {peer.name}")
    place = str(folder / "peer.sock") if peer.socket == "unix" else str(free_port())
    mark, log = secrets.token_hex(8), folder / "log"
    environment = {
        **os.environ,
        **peer.environment,
        MARK: mark,
        "PEER_WEIGHTS": str(weights_path(EXAMPLE)),
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        # Triton's interpreter must find the library of this Python, not of the system's.
        "LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR")),
        **{f"PEER_WINDOW_MS_{name.upper()}": f"{ms:g}" for name, ms in windows_ms.items()},
    }
    server = Server(peer, place, mark)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(python), str(SERVERS / f"{peer.name}_server.py"), place],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait(server, process, log)
        yield server
    finally:
        _end(server, process)


def free_port() -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until each model answers one client rightly."""
    ends_s, said = time.monotonic() + start_s_max, ""
    for model in ("tiny", "sleepy"):
        while True:
            if process.poll() is not None or time.monotonic() > ends_s:
                raise NotStarted(_last_words(log.read_text(errors="replace"), process.poll(), said))
            try:
                with _connected(server):
                    found = generate(server, model, "closed", 1, 0.2)
            except (OSError, subprocess.SubprocessError) as error:
                said = str(error)[:_REASON_CHARACTERS_MAX]
            else:
                said = "; ".join(found["error_samples"])
                if found["answers"] and not found["errors"]:
                    break
            time.sleep(_PROBE_S)


def _last_words(log: str, code: int | None, said: str) -> str:
    """Why a server is not there, without the paths of this machine."""
    how = f"answered wrongly for {start_s_max:g} s" if code is None else f"ended with code {code}"
    errors = [line.strip() for line in log.splitlines() if "Error" in line] or log.split("\n")
    line = _PATH.sub("…", said if code is None and said else errors[-1])
    return f"{how}: {line[-_REASON_CHARACTERS_MAX:]}"


@contextlib.contextmanager
def _connected(server: Server) -> Iterator[None]:
    """Raises OSError while nothing listens: cheaper than starting a generator to find out."""
    is_unix = server.peer.socket == "unix"
    with socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET) as sock:
        sock.connect(server.place if is_unix else ("127.0.0.1", int(server.place)))
    yield


def _end(server: Server, process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to what we started, SIGKILL to what of its own remains after a while."""
    for number, limit_s in ((signal.SIGTERM, stop_s_max), (signal.SIGKILL, stop_s_max)):
        for pid in server.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        ends_s = time.monotonic() + limit_s
        while time.monotonic() < ends_s and server.pids():
            process.poll()
            time.sleep(0.1)
    process.wait()
