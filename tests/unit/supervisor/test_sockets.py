"""The lock and the listening sockets of a run directory."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.home import HomeError
from supervisor.sockets import (
    PID_NAME,
    AlreadyRunning,
    Listeners,
    RunLock,
    bind,
    holder,
    is_held,
    leave_run_dir,
    left_run_dir,
    passed_sockets,
)

HOME = Path("/a home")


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A short one: pytest's own folders are too deep for sockets."""
    with tempfile.TemporaryDirectory(prefix="mo", dir="/tmp") as name:
        yield Path(name)


def test_one_supervisor_holds_a_run_directory(run_dir: Path) -> None:
    """The second is refused with the pid of the first and the line that stops it; after the
    release it may."""
    lock = RunLock.take(run_dir, HOME)
    assert is_held(run_dir)
    with pytest.raises(AlreadyRunning, match=f"pid {os.getpid()} .*stop --home '/a home'$"):
        RunLock.take(run_dir, HOME)
    lock.release()
    assert not is_held(run_dir)
    assert holder(run_dir) == ""
    RunLock.take(run_dir, HOME).release()


def test_a_pid_left_behind_holds_nothing(run_dir: Path) -> None:
    """After a kill -9 the file is there but nobody holds the directory."""
    (run_dir / PID_NAME).write_text("1\n")
    assert not is_held(run_dir)
    RunLock.take(run_dir, HOME).release()


def test_a_missing_run_directory_is_named(run_dir: Path) -> None:
    """No folder, no lock."""
    assert not is_held(run_dir / "x")
    with pytest.raises(HomeError, match="No such file"):
        RunLock.take(run_dir / "x", HOME)


def test_a_stale_socket_is_replaced(run_dir: Path) -> None:
    """What a dead supervisor left at the path is removed; the new one is the owner's alone."""
    path = run_dir / "a.sock"
    bind(path).close()
    assert path.exists()
    with bind(path):
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_all_sockets_are_bound_or_none(run_dir: Path) -> None:
    """A path that cannot be bound is named, and nothing stays behind."""
    listeners = Listeners()
    (run_dir / "data_fabric.sock").mkdir()
    names = [("orchestrator", 0), ("data_fabric", 0)]
    with pytest.raises(HomeError, match="cannot bind"):
        listeners.bind_all(run_dir, names, {})
    assert not (run_dir / "orchestrator.sock").exists()


def test_a_closed_listener_refuses(run_dir: Path) -> None:
    """Closing removes the path, so that new clients are refused at once."""
    listeners = Listeners()
    listeners.bind_all(run_dir, [("orchestrator", 0), ("model_runtime", 1)], {})
    assert (run_dir / "model_runtime.1.sock").exists()
    listeners.close("orchestrator", 0)
    listeners.close("orchestrator", 0)
    assert not (run_dir / "orchestrator.sock").exists()
    listeners.close_all()
    assert not list(run_dir.glob("*.sock"))


def test_a_passed_socket_is_used_and_left(run_dir: Path) -> None:
    """A socket bound by systemd is taken by its file name, and its path is not ours to remove."""
    path = run_dir / "orchestrator.sock"
    given = bind(path)
    listeners = Listeners()
    listeners.bind_all(run_dir, [("orchestrator", 0)], {path.name: given})
    assert listeners.get("orchestrator", 0) is given
    listeners.close_all()
    assert path.exists()
    assert given.fileno() == -1


def test_a_passed_socket_must_lie_in_the_run_directory(run_dir: Path) -> None:
    """The services dial each other there: one bound elsewhere is refused by name."""
    (run_dir / "x").mkdir()
    path = run_dir / "x" / "orchestrator.sock"
    with bind(path) as given, pytest.raises(HomeError, match="systemd bound"):
        Listeners().bind_all(run_dir, [("orchestrator", 0)], {path.name: given})


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
        {"LISTEN_FDS": "x", "LISTEN_PID": str(os.getpid())},
    ],
)
def test_sockets_for_others_are_not_taken(variables: dict[str, str]) -> None:
    """Without LISTEN_FDS, for another pid, or garbled: nothing; and the variables are gone."""
    assert passed_sockets(variables) == {}
    assert variables == {}


def test_a_typo_does_not_hide_a_running_mesh(run_dir: Path) -> None:
    """Whoever holds the home left where its sockets are; nobody holds it: nothing is believed."""
    state_dir = run_dir / ".mortise"
    (state_dir / "run").mkdir(parents=True)
    lock = RunLock.take(state_dir, HOME)
    assert left_run_dir(state_dir) is None, "it has not said so yet"
    for place in (state_dir / "run", Path("/run/elsewhere")):
        leave_run_dir(state_dir, place)
        assert left_run_dir(state_dir) == place
    lock.release()
    assert left_run_dir(state_dir) is None
