"""A home directory: `mortise.toml` as typed tables, and where everything in it lies.

Reads and checks; writes nothing but the folders of `.mortise/`. The file says what a process needs
to exist; what may change live is policy.
"""

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from contracts.limits import connections_max_default, socket_path_bytes_max
from contracts.methods import Role
from contracts.types import Label, Name, Strict

CONFIG_NAME = "mortise.toml"
config_bytes_max = 1024 * 1024
replicas_limit = 64
"""Runtime sockets that one home may bind."""


class HomeError(Exception):
    """The home cannot be used; the message says why and what to do."""


PathText = Annotated[str, Meta(min_length=1, max_length=4_096)]
Uid = Annotated[str, Meta(pattern=r"^[0-9]{1,10}$")]
"""A user id as a TOML key."""


class SupervisorTable(Strict, frozen=True, kw_only=True):
    """`[supervisor]`: `metrics` is a loopback `host:port` beside metrics.sock; "" = none."""

    metrics: str = ""
    log_mib_max: Annotated[int, Meta(ge=1, le=65_536)] = 64
    log_files_max: Annotated[int, Meta(ge=1, le=100)] = 5


PollMicroseconds = Annotated[int, Meta(ge=0, le=10_000)]
"""How long an idle loop may turn instead of sleeping where that pays (`shared/polling.py`)."""
poll_us_default = 300


class OrchestratorTable(Strict, frozen=True, kw_only=True):
    """`[orchestrator]`."""

    connections_max: Annotated[int, Meta(ge=1, le=1_000_000)] = connections_max_default
    poll_us: PollMicroseconds = poll_us_default


class RuntimeTable(Strict, frozen=True, kw_only=True):
    """`[runtime]`. 0 in the file stands for as many `threads` as fit, and for a `replicas_max`
    of `replicas`; both are always resolved (≥ 1) in what a process gets. `trusted_code` holds
    pack digests. `backends` are installed packages' entry points (group `mortise.backends`) that
    a pack may name beside the built-in ones."""

    backend: Literal["torch"] = "torch"
    replicas: Annotated[int, Meta(ge=1, le=replicas_limit)] = 1
    replicas_max: Annotated[int, Meta(ge=0, le=replicas_limit)] = 0
    threads: Annotated[int, Meta(ge=0, le=1_024)] = 0
    standby: bool = True
    memory_mib_max: Annotated[int, Meta(ge=256)] = 8_192
    poll_us: PollMicroseconds = poll_us_default
    trusted_code: list[str] = field(default_factory=list)
    backends: list[Name] = field(default_factory=list)


class SourceTable(Strict, frozen=True, kw_only=True):
    """`[sources.NAME]`; `path` is relative to the home and may hold a glob."""

    kind: Literal["parquet"]
    path: PathText


class AccessTable(Strict, frozen=True, kw_only=True):
    """`[access.UID]`: what a peer of this uid may do. `tenants = ["*"]` is every tenant;
    `risk_level_min` the lowest risk number (the most urgent) it may claim."""

    roles: list[Role]
    tenants: list[Label] = field(default_factory=lambda: ["*"])
    risk_level_min: Annotated[int, Meta(ge=1, le=3)] = 1


class FabricTable(Strict, frozen=True, kw_only=True):
    """What the data fabric gets: `[sources]`."""

    sources: dict[Name, SourceTable] = field(default_factory=dict)


class ControlPlaneTable(Strict, frozen=True, kw_only=True):
    """What the control plane gets: nothing of its own yet."""


Table = OrchestratorTable | RuntimeTable | FabricTable | ControlPlaneTable


class Config(Strict, frozen=True, kw_only=True):
    """`mortise.toml`."""

    home_version: Literal[1]
    run_dir: PathText = ".mortise/run"
    supervisor: SupervisorTable = SupervisorTable()
    orchestrator: OrchestratorTable = OrchestratorTable()
    runtime: RuntimeTable = RuntimeTable()
    sources: dict[Name, SourceTable] = field(default_factory=dict)
    access: dict[Uid, AccessTable] = field(default_factory=dict)

    def table(self, service: str) -> Table:
        """The part that the service's process gets as `environment.config`."""
        tables: dict[str, Table] = {
            "orchestrator": self.orchestrator,
            "model_runtime": self.runtime,
            "data_fabric": FabricTable(sources=self.sources),
            "control_plane": ControlPlaneTable(),
        }
        return tables[service]

    def placed(self, cores: int) -> "Config":
        """The same with placement resolved: threads × replicas_max ≤ cores − 1, at least 1, so
        that runtimes added later oversubscribe nothing."""
        runtime = self.runtime
        replicas_max = max(runtime.replicas, runtime.replicas_max)
        threads = runtime.threads or max(1, (cores - 1) // replicas_max)
        resolved = msgspec.structs.replace(runtime, threads=threads, replicas_max=replicas_max)
        return msgspec.structs.replace(self, runtime=resolved)


def parse(text: bytes) -> Config:
    """The typed form of `mortise.toml`. Raises HomeError naming the key and what was expected."""
    try:
        config = msgspec.toml.decode(text, type=Config)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HomeError(f"{CONFIG_NAME}: {error}{_known_keys(str(error))}") from error
    runtime = config.runtime
    if 0 < runtime.replicas_max < runtime.replicas:
        raise HomeError(
            f"{CONFIG_NAME}: runtime.replicas is {runtime.replicas}, runtime.replicas_max is"
            f" {runtime.replicas_max}: lower the one, raise the other, or leave replicas_max out"
        )
    for name, source in config.sources.items():
        path = Path(source.path)
        if path.is_absolute() or ".." in path.parts:
            raise HomeError(
                f"{CONFIG_NAME}: sources.{name}.path is {source.path!r}; it must be relative to"
                " the home and stay inside it, so that a copied home works elsewhere"
            )
    return config


_PLACE = re.compile(r"unknown field `.*?`(?: - at `\$\.?(\w*).*`)?")
_TABLES: dict[str, type[Strict]] = {
    "": Config,
    "supervisor": SupervisorTable,
    "orchestrator": OrchestratorTable,
    "runtime": RuntimeTable,
    "sources": SourceTable,
    "access": AccessTable,
}


def _known_keys(reason: str) -> str:
    """For an unknown key, the keys that its table may have."""
    found = _PLACE.search(reason)
    table = None if found is None else _TABLES.get(found[1] or "")
    return "" if table is None else f"; known keys: {', '.join(table.__struct_fields__)}"


@dataclass(frozen=True)
class Home:
    """A home directory at an absolute `path`."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(os.path.abspath(self.path)))

    @classmethod
    def find(cls, option: str | Path | None = None) -> "Home":
        """The home that `--home`, `MORTISE_HOME` or the current directory selects."""
        return cls(Path(option or os.environ.get("MORTISE_HOME") or Path.cwd()))

    @cached_property
    def _config(self) -> Config:
        file = self.path / CONFIG_NAME
        try:
            text = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            is_listed = self.path.is_dir() and os.access(self.path, os.R_OK)
            is_used = is_listed and any(self.path.iterdir())
            new = self.path / "demo" if is_used else self.path
            raise HomeError(
                f"no home at {self.path} ({CONFIG_NAME}: {error.strerror}); name another with"
                f" --home, or make one with: mortise init {new} --example flights"
            ) from error
        except OSError as error:
            raise HomeError(
                f"{file} cannot be read: {error.strerror}, as uid {os.getuid()}; use the home as"
                " its owner, or let that uid read it (chmod, chown)"
            ) from error
        if len(text) > config_bytes_max:
            raise HomeError(
                f"{CONFIG_NAME} is {len(text)} bytes, config_bytes_max is {config_bytes_max}"
            )
        return parse(text)

    def config(self) -> Config:
        """The home's file, read once. Raises HomeError; without a home it names the remedy."""
        return self._config

    @property
    def run_dir(self) -> Path:
        """Where the sockets are: `run_dir` of the file, relative ones below the home."""
        return self.path / self.config().run_dir

    @property
    def state_dir(self) -> Path:
        """`.mortise/`: everything the processes write."""
        return self.path / ".mortise"

    @property
    def log_dir(self) -> Path:
        """One JSON-lines file per service and index."""
        return self.state_dir / "log"

    @property
    def policy_dir(self) -> Path:
        """Last-good policies."""
        return self.state_dir / "policy"

    @property
    def spool_dir(self) -> Path:
        """Receipts that the control plane has not acknowledged."""
        return self.state_dir / "spool"

    @property
    def fabric_dir(self) -> Path:
        """What the data fabric keeps: its journal and store."""
        return self.state_dir / "fabric"

    @property
    def sla_path(self) -> Path:
        """The rolling windows of the SLAs."""
        return self.state_dir / "sla.msgpack"

    @property
    def models_dir(self) -> Path:
        """Packs, one folder per digest."""
        return self.path / "models"

    @property
    def data_dir(self) -> Path:
        """Where sources usually lie."""
        return self.path / "data"

    def socket_path(self, service: str, index: int = 0) -> Path:
        """The listening socket of a service."""
        return socket_path(self.run_dir, service, index)

    def prepare(self) -> None:
        """Create the folders of `.mortise/`, owner only. Raises HomeError when it cannot."""
        owned = (self.run_dir, self.log_dir, self.policy_dir, self.spool_dir, self.fabric_dir)
        try:
            for folder in (self.state_dir, *owned):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise HomeError(f"cannot write below {self.path}: {error.strerror}") from error


def socket_name(service: str, index: int = 0) -> str:
    """The file name of a service's socket; only runtimes carry an index."""
    return f"{service}.{index}.sock" if service == "model_runtime" else f"{service}.sock"


def socket_path(run_dir: Path, service: str, index: int = 0) -> Path:
    """The socket below a run directory. Raises HomeError when the kernel cannot bind it."""
    path = run_dir / socket_name(service, index)
    length = len(os.fsencode(path))
    if length > socket_path_bytes_max:
        raise HomeError(
            f"{path} is {length} bytes, socket_path_bytes_max is {socket_path_bytes_max}: move the"
            f' home to a shorter path, or put run_dir = "/run/NAME" into {CONFIG_NAME}'
        )
    return path
