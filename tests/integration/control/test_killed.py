"""kill -9 of the control plane: between append and activation, at random, and while receipts
arrive. One version is active everywhere afterwards, and nothing that was acknowledged is lost."""

import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts import control
from contracts.errors import MeshError
from contracts.lineage import Receipt
from contracts.policies import BatchingPolicy, BatchingSpec
from contracts.types import Empty
from shared.environment import Environment
from shared.policy_follower import PolicyFollower, ReportParts
from shared.rpc.client import RpcClient

ROOT = Path(__file__).parents[3]
SERVICES = ("data_fabric", "model_runtime", "orchestrator")
pytestmark = pytest.mark.slow
wait_s_max = 20.0


class Mesh:
    """A control plane process in a home, and three followers in this one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: asyncio.subprocess.Process | None = None
        self.followers: list[PolicyFollower] = []
        path = home / ".mortise" / "run" / "control_plane.sock"
        self.client = RpcClient(str(path), "control_plane")

    async def start(self, *fault: str) -> None:
        """Start the process and wait until it serves."""
        script = Path(__file__).with_name("plane_process.py")
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(script),
            str(self.home),
            *fault,
            stdout=asyncio.subprocess.PIPE,
            stderr=None,
        )
        assert self.process.stdout is not None
        async with asyncio.timeout(wait_s_max):
            assert await self.process.stdout.readline() == b"serving\n"

    async def kill(self) -> None:
        """SIGKILL, and reap."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def follow(self) -> None:
        """Three instances with the real follower."""
        for service in SERVICES:
            follower = PolicyFollower(
                Environment.for_test(service, self.home),
                check=lambda _policies: None,
                activate=lambda _policies: None,
                report=lambda: ReportParts(ready=True),
            )
            await follower.start()
            self.followers.append(follower)

    async def converged(self) -> control.Status:
        """Wait until all instances have the control plane's position on their disks."""
        async with asyncio.timeout(wait_s_max):
            while True:
                status: control.Status = await self.client.call("status", Empty())
                stored = [follower._file.read()[0] for follower in self.followers]
                positions = {None if one is None else one.position for one in stored}
                if positions == {status.position}:
                    return status
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End everything."""
        for follower in self.followers:
            await follower.close()
        await self.client.close()
        await self.kill()


@pytest.fixture
def home() -> Iterator[Path]:
    """A throw-away bench home with a short path."""
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    yield Path(shutil.copytree(ROOT / "examples" / "bench", folder / "h"))
    shutil.rmtree(folder)


@pytest.fixture
async def mesh(home: Path) -> AsyncIterator[Mesh]:
    """A mesh that is not started yet."""
    one = Mesh(home)
    yield one
    await one.close()


def apply(rows_max: int) -> control.Apply:
    """A commit that loads nothing."""
    policy = BatchingPolicy(name="tiny", spec=BatchingSpec(rows_max=rows_max))
    return control.Apply(policies=[policy], author="me", reason="because")


async def test_killed_between_append_and_activation(mesh: Mesh) -> None:
    """The commit is on the disk, everybody said valid, nobody was told: after the restart the new
    version is active everywhere, under the hash that was appended."""
    await mesh.start()
    await mesh.kill()
    await mesh.start("activation")  # the first version is committed by now
    await mesh.follow()
    await mesh.converged()
    with pytest.raises(MeshError, match="UNAVAILABLE"):
        await mesh.client.call("apply", apply(7))
    await mesh.kill()
    assert {follower.current.version for follower in mesh.followers} == {1}
    await mesh.start()
    status = await mesh.converged()
    assert status.version == 2
    for follower in mesh.followers:
        assert follower.current.find("batching", "tiny") == apply(7).policies[0]
    assert (await mesh.client.call("verify", Empty())).valid


async def test_killed_at_random_while_committing(mesh: Mesh) -> None:
    """Five kills at random moments under a stream of commits: every commit that was answered is in
    the log, the chain is whole, and all instances end at the same version."""
    chance = random.Random(2_013)
    await mesh.start()
    await mesh.follow()
    answered: list[int] = []

    async def commit() -> None:
        for number in range(1, 1_000):
            try:
                applied = await mesh.client.call("apply", apply(number), timeout_s=1.0)
                answered.append(applied.version)
            except MeshError:
                await asyncio.sleep(0.01)

    stream = asyncio.ensure_future(commit())
    for _ in range(5):
        await asyncio.sleep(chance.uniform(0.2, 0.5))
        await mesh.kill()
        await mesh.start()
    stream.cancel()
    status = await mesh.converged()
    verified = await mesh.client.call("verify", Empty())
    assert verified.valid
    assert verified.commits == status.version
    assert answered == sorted(set(answered))
    assert answered
    assert answered[-1] <= status.version
    log: dict[int, Any] = {}
    while len(log) < status.version:
        page = await mesh.client.call("commits", control.CommitsRequest(after=len(log)))
        log |= {commit.version: commit for commit in page.commits}
    assert set(answered) <= log.keys()


async def test_killed_while_receipts_arrive(mesh: Mesh) -> None:
    """Five kills while a spool is shipped again and again: what was acknowledged is there, and
    every request is counted once."""
    await mesh.start()
    receipts = [_receipt(number) for number in range(4_000)]
    acknowledged = 0

    async def ship() -> None:
        nonlocal acknowledged
        while acknowledged < len(receipts):
            batch = receipts[acknowledged : acknowledged + 50]
            body = control.Receipts(
                spool="s", through=acknowledged + len(batch), receipts=batch, combinations=[]
            )
            try:
                stored = await mesh.client.call("receipts", body, timeout_s=1.0)
                acknowledged = stored.through
            except MeshError:
                await asyncio.sleep(0.01)

    shipping = asyncio.ensure_future(ship())
    for _ in range(5):
        await asyncio.sleep(0.1)
        await mesh.kill()
        await mesh.start()
        status = await mesh.client.call("status", Empty())
        assert status.receipts >= acknowledged
    async with asyncio.timeout(wait_s_max):
        await shipping
    status = await mesh.client.call("status", Empty())
    assert (status.receipts, status.requests_counted) == (4_000, 4_000)


def _receipt(number: int) -> msgspec.Raw:
    digest = "sha256:" + "a" * 64
    receipt = Receipt(
        "t", f"r{number}", f"{number:032x}", number, "ok", "m", "1", 1, digest, "default", False,
        [], 2, 0, 1, 0, 0, 10, 100, [1] * 8, [("orchestrator.0-x", 0, 100)],
    )  # fmt: skip
    return msgspec.Raw(msgspec.msgpack.encode(receipt))
