"""A service in this process: what lifecycle answers for it, and the environment it gets."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from contracts.errors import MeshError
from contracts.methods import EVERY_SERVICE, METHODS
from contracts.service import Metric
from contracts.types import Empty, Scalar
from shared.clock import ManualClock
from shared.home import ControlPlaneTable, OrchestratorTable
from shared.lifecycle import Environment, Readiness, Service, running
from shared.metrics import Counter
from shared.rpc.client import RpcClient
from shared.rpc.server import Call, Handler


@pytest.fixture
def home() -> Iterator[Path]:
    """A short folder: pytest's own are too deep for sockets."""
    with tempfile.TemporaryDirectory(prefix="mo", dir="/tmp") as name:
        yield Path(name)


class Orchestrator(Service):
    """Answers nothing of its own, and notes what happens to it."""

    name = "orchestrator"
    events: list[str]

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        type(self).events = ["made"]
        self._asked = Counter("ai_asked_total", "Asked")

    def handlers(self) -> Mapping[str, Handler]:
        """Every method, refusing."""
        shared = {row.name for row in EVERY_SERVICE}
        return {name: self._refuse for name in METHODS["orchestrator"] if name not in shared}

    def _refuse(self, call: Call) -> None:
        self._asked.labels().add()
        raise MeshError("UNAVAILABLE", "not here")

    async def start(self) -> None:
        """Noted."""
        self.events.append("start")

    async def promoted(self) -> None:
        """Noted."""
        self.events.append("promoted")

    async def drain(self) -> None:
        """Noted."""
        self.events.append("drain")

    def readiness(self) -> Readiness:
        """Serves less."""
        return Readiness(ready=True, degraded=True, reasons=["a test"], policy_version=7)

    def statistics(self) -> dict[str, Scalar]:
        """One of its own."""
        return {"own": 3}

    def metrics(self) -> list[Metric]:
        """One family."""
        return [self._asked.collect()]


async def test_every_service_answers_for_itself(home: Path) -> None:
    """health, statistics and metrics come from the service's own methods; the order of its life
    is start, promoted, drain."""
    clock = ManualClock()
    environment = Environment.for_test("orchestrator", home, clock=clock)
    async with running(Orchestrator, environment):
        client = RpcClient(str(environment.run_dir / "orchestrator.sock"), "orchestrator")
        await client.connect(5.0)
        clock.advance(12.0)
        health = await client.call("health", Empty())
        assert (health.live, health.ready, health.degraded) == (True, True, True)
        assert (health.reasons, health.policy_version, health.uptime_s) == (["a test"], 7, 12.0)
        assert health.instance == environment.instance
        with pytest.raises(MeshError, match="not here"):
            await client.call("models", Empty())
        statistics = await client.call("statistics", Empty())
        assert statistics.values["own"] == 3
        metrics = await client.call("metrics", Empty())
        assert metrics.metrics[0].series[0].value == 1
        await client.close()
        assert Orchestrator.events == ["made", "start", "promoted"]
    assert Orchestrator.events[-1] == "drain"
    assert not (environment.run_dir / "orchestrator.sock").exists()


async def test_a_standby_is_not_promoted_by_itself(home: Path) -> None:
    """A standby starts, and becomes active only when told."""
    async with running(Orchestrator, Environment.for_test("orchestrator", home, standby=True)):
        assert Orchestrator.events == ["made", "start"]


def test_the_environment_of_a_test_is_complete(home: Path) -> None:
    """Folders exist, fields of the table can be replaced, the instance is new each time."""
    environment = Environment.for_test("orchestrator", home, connections_max=5)
    assert environment.config == OrchestratorTable(connections_max=5)
    assert environment.home == home
    for name in ("run", "policy", "spool", "log", "fabric"):
        assert (home / ".mortise" / name).is_dir()
    other = Environment.for_test("control_plane", home)
    assert other.config == ControlPlaneTable()
    assert other.instance.startswith("control_plane.0-")
    assert other.instance != Environment.for_test("control_plane", home).instance


def test_the_environment_of_a_test_reads_the_home(home: Path) -> None:
    """With a file there, its tables are used, placement resolved."""
    (home / "mortise.toml").write_text("home_version = 1\n[runtime]\nreplicas = 2\n")
    environment = Environment.for_test("model_runtime", home, index=1)
    assert (environment.replicas, environment.replicas_max) == (2, 2)
    assert environment.config.threads == 1
    assert environment.index == 1
