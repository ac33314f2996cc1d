"""A home with the bench packs, packs made up from a manifest alone, and a running control plane."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.distribution import PolicyItem, Position, Report, Subscribe
from contracts.pack import Manifest
from contracts.policies import DeployedVersion, DeploymentPolicy, DeploymentSpec, PolicySet
from contracts.types import UNSET
from services.control_plane.service import ControlPlane
from shared.environment import Environment
from shared.lifecycle import running
from shared.packs import pack_digest, read_manifest
from shared.policy_follower import PolicyFollower, ReportParts
from shared.rpc.client import RpcClient

ROOT = Path(__file__).parents[4]
TINY = "sha256:edd78ff137d597bd287ac15b05d7d80be641efe2312bb91cf2c1ba2bdd1ab43e"


@pytest.fixture
def home() -> Iterator[Path]:
    """A throw-away bench home with a short path, for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    yield Path(shutil.copytree(ROOT / "examples" / "bench", folder / "h"))
    shutil.rmtree(folder)


@pytest.fixture
def make_pack(home: Path) -> Callable[..., str]:
    """A further pack of tiny: its manifest with another description; returns the digest."""

    def make(note: str, model: str = "tiny") -> str:
        manifest = read_manifest(home / "models", TINY)
        contract = msgspec.structs.replace(manifest.contract, description=note, name=model)
        made: Manifest = msgspec.structs.replace(manifest, contract=contract)
        digest = pack_digest(made)
        folder = home / "models" / digest.removeprefix("sha256:")
        folder.mkdir()
        (folder / "manifest.json").write_bytes(msgspec.json.encode(made))
        return digest

    return make


class Plane:
    """A control plane on its socket, and instances that follow it."""

    def __init__(self, home: Path, client: RpcClient, service: ControlPlane) -> None:
        self.home = home
        self.client = client
        self.service = service
        self.followers: list[PolicyFollower] = []
        self.links: list[RpcClient] = []

    async def call(self, method: str, body: Any, **options: Any) -> Any:
        """One call as the operator."""
        return await self.client.call(method, body, **options)

    async def follow(
        self,
        service: str,
        check: Callable[[PolicySet], str | None] = lambda _policies: None,
        report: Callable[[PolicySet], ReportParts] = lambda _policies: ReportParts(ready=True),
        **options: Any,
    ) -> PolicyFollower:
        """An instance with the real follower, once its report is heard and it has the head."""
        environment = Environment.for_test(service, self.home, **options)
        follower = PolicyFollower(
            environment,
            check=check,
            activate=lambda _policies: follower.report_now(),
            report=lambda: report(follower.current),
        )
        await follower.start()
        self.followers.append(follower)
        distributor = self.service._distributor
        table = distributor.instances.by_name
        await until(
            lambda: (
                (one := table.get(environment.instance)) is not None
                and one.report is not None
                and (distributor.head is None or follower.position == distributor.head.position)
            )
        )
        return follower

    async def puppet(self, service: str, instance: str) -> "Puppet":
        """An instance that says exactly what the test makes it say."""
        client = RpcClient(self.client.path, "control_plane")
        await client.connect(1.0)
        self.links.append(client)
        puppet = Puppet(client, service, instance)
        await puppet.report()
        await until(lambda: bool(puppet.items))
        return puppet

    async def close(self) -> None:
        """End every instance."""
        for follower in self.followers:
            await follower.close()
        for client in (*self.links, self.client):
            await client.close()


class Puppet:
    """An instance without a mind of its own."""

    def __init__(self, client: RpcClient, service: str, instance: str) -> None:
        self.client, self.service, self.instance = client, service, instance
        self.items: list[PolicyItem] = []
        self.subscription = asyncio.ensure_future(
            client.call(
                "subscribe",
                Subscribe(service=service, instance=instance),  # type: ignore[arg-type]
                on_item=self.items.append,
            )
        )
        self.subscription.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def report(
        self, position: Position | None = None, role: str = "active", *, leaving: bool = False
    ) -> None:
        """A heartbeat, or the goodbye."""
        body = Report(
            service=self.service,  # type: ignore[arg-type]
            instance=self.instance,
            index=0,
            role=role,  # type: ignore[arg-type]
            position=UNSET if position is None else position,
            ready=True,
            infra="sha256:" + "0" * 64,
            leaving=leaving,
        )
        await self.client.call("report", body)


async def until(condition: Callable[[], bool], turns: int = 2_000) -> None:
    """Let the loop turn until something is so; the bound makes a hang a failure."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    """`until`, for tests."""
    return until


@asynccontextmanager
async def run_plane(home: Path) -> AsyncIterator[Plane]:
    """The service in this process, on the home's socket."""
    environment = Environment.for_test("control_plane", home)
    made: list[ControlPlane] = []

    def build(environment: Environment) -> ControlPlane:
        made.append(ControlPlane(environment, settle_s=0.0))
        return made[0]

    async with running(partial(build), environment):  # type: ignore[arg-type]
        client = RpcClient(str(environment.run_dir / "control_plane.sock"), "control_plane")
        await client.connect(1.0)
        plane = Plane(home, client, made[0])
        try:
            yield plane
        finally:
            await plane.close()


@pytest.fixture
def start(home: Path) -> Callable[..., Any]:
    """Start a control plane in the home: `async with start() as plane`."""
    return lambda where=home: run_plane(where)


@pytest.fixture
async def plane(home: Path) -> AsyncIterator[Plane]:
    """A running control plane."""
    async with run_plane(home) as running_plane:
        yield running_plane


@pytest.fixture
def deployment() -> Callable[..., DeploymentPolicy]:
    """A deployment of tiny with these versions."""

    def make(*versions: str, replicas: int = 1) -> DeploymentPolicy:
        rows = [DeployedVersion(version=version, replicas=replicas) for version in versions]
        return DeploymentPolicy(name="tiny", spec=DeploymentSpec(versions=rows))

    return make
