"""The run directory: its lock, and every listening socket, bound once for all restarts.

systemd may bind the sockets instead (LISTEN_FDS); those are used as they are and never removed.
"""

import fcntl
import os
import shlex
import socket
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from contracts.limits import listen_backlog
from shared.home import HomeError, socket_path

PID_NAME = "supervisor.pid"
RUN_DIR_NAME = "run_dir"
"""Beside the state of a home: where its running supervisor put the sockets."""
_FIRST_PASSED = 3
"""SD_LISTEN_FDS_START; Source: sd_listen_fds(3)."""


class AlreadyRunning(HomeError):
    """Another supervisor holds this run directory; the message has the line that stops it."""

    def __init__(self, run_dir: Path, home: Path) -> None:
        pid = holder(run_dir)
        who = f"pid {pid}" if pid else "another supervisor"
        line = f"mortise stop --home {shlex.quote(str(home))}"
        super().__init__(f"already running: {who} serves {run_dir}; stop it with: {line}")


@dataclass(frozen=True, slots=True)
class RunLock:
    """The flock on a run directory; held until the descriptor closes, also by a crash."""

    run_dir: Path
    descriptor: int

    @classmethod
    def take(cls, run_dir: Path, home: Path) -> "RunLock":
        """Lock a directory of the home, leave our pid in it. Raises AlreadyRunning, HomeError."""
        try:
            descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise HomeError(f"cannot open {run_dir}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.chmod(run_dir, 0o700)
            (run_dir / PID_NAME).write_text(f"{os.getpid()}\n")
        except BlockingIOError as error:
            os.close(descriptor)
            raise AlreadyRunning(run_dir, home) from error
        except OSError as error:
            os.close(descriptor)
            raise HomeError(f"cannot write {run_dir}: {error.strerror}") from error
        return cls(run_dir, descriptor)

    def release(self) -> None:
        """Remove the pid and let go."""
        (self.run_dir / PID_NAME).unlink(missing_ok=True)
        os.close(self.descriptor)


def holder(run_dir: Path) -> str:
    """The pid that a running supervisor left there; "" when none can be read."""
    try:
        return (run_dir / PID_NAME).read_text().strip()
    except OSError:
        return ""


def is_held(run_dir: Path) -> bool:
    """Whether some supervisor holds the run directory now."""
    try:
        descriptor = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def leave_run_dir(state_dir: Path, run_dir: Path) -> None:
    """Say where the sockets are, for whoever comes while `mortise.toml` cannot be read."""
    (state_dir / RUN_DIR_NAME).write_text(os.path.relpath(run_dir, state_dir.parent))


def left_run_dir(state_dir: Path) -> Path | None:
    """The run directory of the supervisor that holds this home now; None when none does."""
    if not is_held(state_dir):
        return None
    try:
        text = (state_dir / RUN_DIR_NAME).read_text()
    except OSError:
        return None
    return Path(os.path.normpath(state_dir.parent / text)) if text else None


def bind(path: Path) -> socket.socket:
    """A listening socket at `path`, owner only; what a dead supervisor left there is removed.

    Call it with the run directory locked.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        sock.bind(os.fspath(path))
        sock.listen(listen_backlog)
    except OSError as error:
        sock.close()
        raise HomeError(f"cannot bind {path}: {error.strerror}") from error
    finally:
        os.umask(before)
    return sock


def passed_sockets(variables: MutableMapping[str, str]) -> dict[str, socket.socket]:
    """Listening sockets that systemd handed to this process, by file name; taken once.

    Only for our own pid, as sd_listen_fds(3) asks. Others than Unix stream listeners are left.
    """
    count = variables.pop("LISTEN_FDS", "0")
    pid = variables.pop("LISTEN_PID", "")
    variables.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    found: dict[str, socket.socket] = {}
    for descriptor in range(_FIRST_PASSED, _FIRST_PASSED + int(count)):
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
        is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if sock.family == socket.AF_UNIX and sock.type == socket.SOCK_STREAM and is_listening:
            sock.setblocking(False)
            found[Path(sock.getsockname()).name] = sock
    return found


class Listeners:
    """Every listening socket of the mesh by (service, index)."""

    def __init__(self) -> None:
        self._sockets: dict[tuple[str, int], socket.socket] = {}
        self._bound: dict[tuple[str, int], Path] = {}

    def bind_all(
        self,
        run_dir: Path,
        names: Iterable[tuple[str, int]],
        passed: dict[str, socket.socket],
    ) -> None:
        """Bind each socket, or take the one passed. Raises HomeError; nothing is left then."""
        try:
            for service, index in names:
                path = socket_path(run_dir, service, index)
                given = passed.get(path.name)
                self._sockets[service, index] = bind(path) if given is None else _at(path, given)
                if given is None:
                    self._bound[service, index] = path
        except HomeError:
            self.close_all()
            raise

    def get(self, service: str, index: int) -> socket.socket:
        """The listening socket of one child."""
        return self._sockets[service, index]

    def close(self, service: str, index: int) -> None:
        """Close and remove one: new clients are refused from now on. Harmless when closed."""
        if (path := self._bound.pop((service, index), None)) is not None:
            path.unlink(missing_ok=True)
        if (sock := self._sockets.pop((service, index), None)) is not None:
            sock.close()

    def close_all(self) -> None:
        """Close and remove everything that was bound here."""
        for service, index in list(self._sockets):
            self.close(service, index)


def _at(path: Path, given: socket.socket) -> socket.socket:
    """The passed socket, if it lies where the services dial each other."""
    if given.getsockname() != os.fspath(path):
        raise HomeError(f"systemd bound {given.getsockname()}; it must be {path}")
    return given
