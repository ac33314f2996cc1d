"""A mesh for a test: a copy of a home, started on its own, gone for certain afterwards.

The supervisor is a process of its own, bound to ours by the kernel: if the test run is killed, it
is told to drain, and its children die with it.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from mortise.addresses import home_path, socket_path
from mortise.client import Client
from mortise.errors import MortiseError
from mortise.result import Record

START_S_MAX = 90.0
"""Importing torch on a busy machine takes most of it."""
SETTLE_S_MAX = 10.0
"""A mesh that answers but serves less may become whole within this; then the test goes on."""
DRAIN_S_MAX = 20.0
POLL_S = 0.05
# Ask the kernel for SIGTERM when the test run ends, then become the supervisor.
_BOUND = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM);"
    "os.getppid() == int(sys.argv[1]) or sys.exit(71);"
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)


class Mesh:
    """A running mesh. `home` is its own copy; `log` what its supervisor printed."""

    def __init__(self, home: str | os.PathLike[str]) -> None:
        """Nothing is started before the `with` block."""
        self._source = home_path(home)
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self.home = Path()

    @property
    def log(self) -> Path:
        """What the supervisor printed."""
        return self._folder / "supervisor.log"

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        assert self._process is not None, "the mesh is not running"
        return self._process.pid

    def socket(self, service: str = "orchestrator") -> str:
        """The path of a service's socket."""
        return socket_path(self.home, service)

    def client(self, service: str = "orchestrator") -> Client:
        """A client of one of its services; close it, or use it in a `with` block."""
        return Client(home=self.home, service=service)

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))  # sockets need short paths
        self.home = self._folder / "home"
        try:
            shutil.copytree(self._source, self.home, ignore=shutil.ignore_patterns(".mortise"))
            self._process = self._spawn()
            self._wait_ready(self._process)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _spawn(self) -> subprocess.Popen[bytes]:
        bound = [sys.executable, "-c", _BOUND, str(os.getpid())]
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [*bound, "-P", "-m", "mortise", "start", "--home", str(self.home)],
                cwd=self._folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        ends_s = time.monotonic() + START_S_MAX
        settled_s = math.inf
        with self.client() as client:
            while time.monotonic() < settled_s:
                health = _health(client)
                if health is not None and health.ready:
                    settled_s = min(settled_s, time.monotonic() + SETTLE_S_MAX)
                    if not health.degraded:
                        return
                if process.poll() is not None or time.monotonic() > ends_s:
                    state = "is not ready in time" if process.returncode is None else "ended"
                    raise RuntimeError(f"the mesh {state}:\n{self.log.read_text(errors='replace')}")
                time.sleep(POLL_S)

    def _end(self) -> None:
        """Drain, then kill; the children are bound to the supervisor and die with it."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(DRAIN_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)


def failed_checks(socket: str) -> list[str]:
    """What `mortise contracts verify` finds wrong with a live service, a line each.

    In a process of its own: the test's own packages may have the names of ours.
    """
    command = [
        sys.executable,
        "-P",
        "-m",
        "mortise",
        "contracts",
        "verify",
        "--socket",
        socket,
        "--json",
    ]
    done = subprocess.run(command, env=_environment(), capture_output=True, check=False)
    if not done.stdout:
        return [done.stderr.decode(errors="replace")]
    checks = json.loads(done.stdout)["checks"]
    return [
        f"{one['socket']}: {one['check']}: {one['reason']}" for one in checks if not one["passed"]
    ]


def _environment() -> dict[str, str]:
    """Ours, with this very package first for `python -m mortise`."""
    inherited = os.environ.get("PYTHONPATH")
    paths = [str(Path(__file__).parents[1]), *([inherited] if inherited else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _health(client: Client) -> Record | None:
    try:
        return client.call("health")
    except MortiseError:
        return None
