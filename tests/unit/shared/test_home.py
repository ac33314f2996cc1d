"""`mortise.toml` and the paths of a home."""

from pathlib import Path

import msgspec
import pytest

from contracts.limits import socket_path_bytes_max
from shared.home import (
    Config,
    FabricTable,
    Home,
    HomeError,
    RuntimeTable,
    parse,
    socket_name,
    socket_path,
)

FULL = b"""
home_version = 1
run_dir = "/run/mortise"
[supervisor]
metrics = "127.0.0.1:9464"
log_mib_max = 8
log_files_max = 2
[orchestrator]
connections_max = 100
poll_us = 50
[runtime]
backend = "torch"
replicas = 2
replicas_max = 4
threads = 3
standby = false
memory_mib_max = 1024
poll_us = 0
trusted_code = ["sha256:00"]
[sources.flights]
kind = "parquet"
path = "data/flights-*.parquet"
[access.1001]
roles = ["client"]
tenants = ["acme"]
risk_level_min = 2
"""


def test_every_key_of_the_file_is_read() -> None:
    """A file with every key gives the typed tables."""
    config = parse(FULL)
    assert config.run_dir == "/run/mortise"
    assert config.supervisor.log_mib_max == 8
    assert config.orchestrator.connections_max == 100
    assert (config.orchestrator.poll_us, config.runtime.poll_us) == (50, 0)
    assert config.runtime.threads == 3
    assert config.sources["flights"].path == "data/flights-*.parquet"
    assert config.access["1001"].risk_level_min == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"\0\1", "Invalid"),
        (b"\xff\xfe", ""),
        (b"", "home_version"),
        (b"home_version = 2", "home_version"),
        (b"home_version = 1\nhome = 1", "`home`"),
        (b"home_version = 1\n[orchestrator]\nconections_max = 5", "`conections_max`"),
        (b"home_version = 1\n[orchestrator]\nconnections_max = 0", "connections_max"),
        (b"home_version = 1\n[orchestrator]\npoll_us = 10001", "orchestrator.poll_us"),
        (b"home_version = 1\n[runtime]\npoll_us = -1", "runtime.poll_us"),
        (b"home_version = 1\n[runtime]\nreplicas = 'two'", "runtime.replicas"),
        (
            b"home_version = 1\n[runtime]\nreplicas = 9\nreplicas_max = 2",
            "runtime.replicas is 9, runtime.replicas_max is 2",
        ),
        (b"home_version = 1\n[access.bob]\nroles = []", "access"),
        (b"home_version = 1\n[access.1]\nroles = ['king']", "king"),
        (b"home_version = 1\n[sources.a]\nkind = 'parquet'\npath = '/etc/x'", "relative"),
        (b"home_version = 1\n[sources.a]\nkind = 'parquet'\npath = '../x'", "inside"),
    ],
)
def test_a_broken_file_is_refused_by_name(text: bytes, reason: str) -> None:
    """Garbage, unknown keys, wrong types and paths out of the home: the message names them."""
    with pytest.raises(HomeError) as caught:
        parse(text)
    assert str(caught.value).startswith("mortise.toml: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("cores", "replicas", "threads"),
    [(1, 1, 1), (2, 1, 1), (4, 1, 3), (4, 2, 1), (8, 2, 3), (2, 4, 1)],
)
def test_placement_leaves_a_core_free(cores: int, replicas: int, threads: int) -> None:
    """threads × replicas ≤ cores − 1, at least 1 each."""
    config = Config(home_version=1, runtime=RuntimeTable(replicas=replicas)).placed(cores)
    assert config.runtime.threads == threads
    assert config.runtime.replicas_max == replicas
    assert threads == 1 or threads * replicas <= cores - 1


@pytest.mark.parametrize("runtime", [b"replicas = 2\nreplicas_max = 2", b"replicas = 9"])
def test_replicas_up_to_their_maximum_are_accepted(runtime: bytes) -> None:
    """At the maximum, and without one, which then is `replicas`."""
    config = parse(b"home_version = 1\n[runtime]\n" + runtime).placed(2)
    assert config.runtime.replicas == config.runtime.replicas_max


def test_each_service_gets_its_own_table() -> None:
    """The table of a service survives the way to its process."""
    config = parse(FULL).placed(4)
    for service in ("orchestrator", "model_runtime", "data_fabric", "control_plane"):
        table = config.table(service)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(table), type=type(table)) == table
    assert isinstance(config.table("data_fabric"), FabricTable)


def test_a_folder_without_a_file_names_the_remedy(tmp_path: Path) -> None:
    """No home: the message has the exact command."""
    with pytest.raises(HomeError, match=f"mortise init {tmp_path} --example flights"):
        Home(tmp_path).config()


def test_paths_follow_the_home(tmp_path: Path) -> None:
    """A relative run directory lies below the home, wherever that is; an absolute one is itself."""
    (tmp_path / "mortise.toml").write_text("home_version = 1")
    home = Home(tmp_path)
    assert home.run_dir == tmp_path / ".mortise" / "run"
    assert home.models_dir == tmp_path / "models"
    (tmp_path / "mortise.toml").write_text('home_version = 1\nrun_dir = "/run/x"')
    assert Home(tmp_path).run_dir == Path("/run/x")


def test_only_runtimes_are_numbered() -> None:
    """The socket names of API.md."""
    assert socket_name("orchestrator") == "orchestrator.sock"
    assert socket_name("model_runtime", 3) == "model_runtime.3.sock"


def test_the_longest_bindable_path_is_107_bytes() -> None:
    """At the bound a path is accepted, one above refused with the remedy; bytes, not characters."""
    name = len("/orchestrator.sock")
    fits = Path("/" + "d" * (socket_path_bytes_max - name - 1))
    assert len(str(socket_path(fits, "orchestrator"))) == socket_path_bytes_max
    with pytest.raises(HomeError, match="run_dir"):
        socket_path(Path(f"{fits}d"), "orchestrator")
    with pytest.raises(HomeError, match="socket_path_bytes_max is 107"):
        socket_path(Path("/" + "é" * 50), "orchestrator")


def test_the_home_is_found_by_option_then_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--home` wins over MORTISE_HOME, which wins over the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MORTISE_HOME", raising=False)
    assert Home.find().path == tmp_path
    monkeypatch.setenv("MORTISE_HOME", "/a")
    assert Home.find().path == Path("/a")
    assert Home.find("/b").path == Path("/b")


def test_prepared_folders_are_the_owners(tmp_path: Path) -> None:
    """`.mortise/` and what is in it are 0700."""
    (tmp_path / "mortise.toml").write_text("home_version = 1")
    home = Home(tmp_path)
    home.prepare()
    for folder in (home.state_dir, home.run_dir, home.log_dir, home.spool_dir):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("x = 1", "known keys: home_version, run_dir, supervisor"),
        ("[runtime]\nx = 1", "known keys: backend, replicas"),
        ("[sources.a]\nx = 1", "known keys: kind, path"),
        ("[access.0]\nx = 1", "known keys: roles, tenants"),
    ],
)
def test_an_unknown_key_is_told_the_known_ones(text: str, keys: str) -> None:
    """Those of its own table."""
    with pytest.raises(HomeError, match=keys):
        parse(f"home_version = 1\n{text}\n".encode())
