"""Which children a home has, how each is started and what it may use."""

from dataclasses import dataclass, field

from shared.home import Config
from supervisor.liveness import Patience
from supervisor.restart import Intensity

RUNTIME = "model_runtime"
ORDER = ("control_plane", "data_fabric", RUNTIME, "orchestrator")
"""Order of starting; the drain goes the other way, so the edge closes first."""
BOOT = ("-P", "-m", "shared.boot")
"""Binds to the supervisor, then runs what follows. Without -P `python -m` would import from the
current directory before our tree."""
drain_s = 12.0
"""The whole mesh; what is left then is killed."""


def module_command(module: str) -> tuple[str, ...]:
    """Arguments of the interpreter that run a module of our tree."""
    return (*BOOT, module)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child. `has_standby`: a second, ready one takes over; `overlaps`: a successor may run
    beside it; `is_forked`: it comes from the template. `memory_mib_max` 0 sets no limit. After
    `drain_s` seconds of draining it is killed."""

    service: str
    index: int
    command: tuple[str, ...]
    has_standby: bool = False
    overlaps: bool = True
    is_forked: bool = False
    threads: int = 1
    memory_mib_max: int = 0
    drain_s: float = 5.0

    def __post_init__(self) -> None:
        assert self.drain_s < drain_s, "one child cannot use up the budget of all"

    @property
    def label(self) -> str:
        """`service index`, as people read it."""
        return f"{self.service} {self.index}"


@dataclass(frozen=True, slots=True)
class MeshSpec:
    """Everything the supervisor runs; tests put their own commands and bounds in. `spares` are
    runtimes that have a socket and start when they are asked for, by ascending index."""

    children: tuple[ChildSpec, ...]
    template: ChildSpec | None
    spares: tuple[ChildSpec, ...] = ()
    intensity: Intensity = field(default_factory=Intensity)
    patience: Patience = field(default_factory=Patience)
    ready_s_max: float = 180.0
    """How long a start waits until the orchestrator can answer."""


def mesh_of(config: Config) -> MeshSpec:
    """The four services of a home whose placement is resolved (`Config.placed`)."""
    assert config.runtime.threads >= 1, "placement is resolved before the start"
    runtime = config.runtime
    return MeshSpec(
        children=tuple(child for service in ORDER for child in _children(service, config)),
        spares=tuple(
            runtime_child(index, config) for index in range(runtime.replicas, runtime.replicas_max)
        ),
        template=ChildSpec(
            RUNTIME,
            0,
            module_command("services.model_runtime.template"),
            threads=runtime.threads,
        ),
    )


def _children(service: str, config: Config) -> list[ChildSpec]:
    command = module_command(f"services.{service}")
    if service == "control_plane":
        # One process writes the policy log; the data path does not need it for a while.
        return [ChildSpec(service, 0, command, overlaps=False)]
    if service != RUNTIME:
        return [ChildSpec(service, 0, command, has_standby=True)]
    return [runtime_child(index, config) for index in range(config.runtime.replicas)]


def runtime_child(index: int, config: Config) -> ChildSpec:
    """One replica; the first has a standby."""
    runtime = config.runtime
    return ChildSpec(
        RUNTIME,
        index,
        module_command(f"services.{RUNTIME}"),
        has_standby=runtime.standby and index == 0,
        is_forked=True,
        threads=runtime.threads,
        memory_mib_max=runtime.memory_mib_max,
    )
