"""The real orchestrator service among fake neighbours, all on one loop and real sockets.

The fakes answer their sockets' real contracts from computations that a test can check: `tiny`
doubles the first column of its input; the view `departure` refuses negative hours, and `delay`'s
probability of `late` is hour / 100.
"""

import asyncio
import contextlib
import shutil
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from msgspec import Raw

from contracts.control import Receipts, ReceiptsStored
from contracts.distribution import Position
from contracts.errors import MeshError
from contracts.execution import Execute, Executed
from contracts.features import (
    FeatureBatch,
    FeatureBatchItem,
    FeatureBatchResponse,
    FeatureBlock,
    FeatureColumn,
    FeatureLineage,
    RefusedRow,
)
from contracts.inference import InferenceRequest, Prediction, Tensor
from contracts.lineage import Receipt
from contracts.methods import METHODS
from contracts.pack import (
    ColumnEncoder,
    LoadedModel,
    LoadedModels,
    Manifest,
    ModelContract,
    PackFile,
    ViewReference,
)
from contracts.policies import ModelPolicy, ModelSpec, Policy, PublishedVersion
from contracts.service import Health, Metrics, Statistics
from contracts.types import UNSET
from services.orchestrator.service import Orchestrator
from shared.access import Access
from shared.environment import Environment
from shared.last_good import LastGood, LastGoodFile
from shared.lifecycle import running
from shared.pack_digests import pack_digest, sha256, weights_digest
from shared.rpc.client import RpcClient
from shared.rpc.server import DEFERRED, Call, Handler, Server
from tests.unit.services.orchestrator.making import (
    VIEW_SQL,
    classifier,
    contract,
    digest,
    manifest,
    policy_set,
    published,
)

LINEAGE = FeatureLineage(data=digest(21), feature_code=digest(22))
Compute = Callable[[Execute], Executed]


def now_us() -> int:
    """The clock that the processes of a machine share."""
    return time.monotonic_ns() // 1_000


class Fake:
    """A service's socket with canned answers."""

    def __init__(self, service: str, path: Path, handlers: Mapping[str, Handler]) -> None:
        self.service = service
        self.path = path
        self.instance = f"{service}.0-fake0000"
        self.lives = 0
        self._handlers = handlers
        self._server: Server | None = None

    async def start(self) -> None:
        """Accept; a new life after `kill`."""
        self.lives += 1
        self.path.unlink(missing_ok=True)
        handlers = {
            **dict.fromkeys(METHODS[self.service], self._unexpected),
            "health": self._health,
            "statistics": lambda call: Statistics(values={}),
            "metrics": lambda call: Metrics(metrics=[]),
            **self._handlers,
        }
        del handlers["ping"], handlers["describe"]
        self._server = Server(self.service, handlers, instance=self.instance, access=Access.owner())
        await self._server.start_path(self.path)

    async def kill(self) -> None:
        """Go away as after kill -9: connections end, nothing is answered."""
        assert self._server is not None
        server, self._server = self._server, None
        server.stop_accepting()
        assert server._serving is not None
        for _ in range(8):  # a connection may be between the kernel's accept and its session
            for session in list(server._serving.sessions):
                session.abort("killed")
            await asyncio.sleep(0)

    async def kill_and_start(self) -> None:
        """Die and be replaced at once."""
        await self.kill()
        await self.start()

    async def stop(self) -> None:
        """The end of the test."""
        if self._server is not None:
            await self.kill()

    def _health(self, call: Call) -> Health:
        return Health(
            live=True, ready=True, degraded=False, reasons=[], policy_version=1, uptime_s=1.0,
            service=self.service, instance=self.instance,
        )  # fmt: skip

    def _unexpected(self, call: Call) -> Any:
        raise MeshError("INTERNAL", f"the fake has no {call.row.name}")


class Runtime(Fake):
    """A model runtime. While `is_held`, batches are kept until `release`."""

    def __init__(self, path: Path, models: list[LoadedModel]) -> None:
        super().__init__("model_runtime", path, {"execute": self._execute, "models": self._models})
        self.models = models
        self.credits = 2
        self.is_held = False
        self.held: list[Call] = []
        self.batches: list[Execute] = []
        self.cancelled = 0
        self.compute: Compute = compute
        self.error: MeshError | None = None

    def release(self) -> None:
        """Answer what was held."""
        self.is_held = False
        held, self.held = self.held, []
        for call in held:
            self._answer(call)

    def _execute(self, call: Call) -> Any:
        self.batches.append(call.body)
        call.on_cancel = lambda: self._cancel(call)
        if self.is_held:
            self.held.append(call)
        else:
            asyncio.get_running_loop().call_soon(self._answer, call)
        return DEFERRED

    def _answer(self, call: Call) -> None:
        if self.error is not None:
            call.fail(self.error)
        else:
            call.reply(self.compute(call.body))

    def _cancel(self, call: Call) -> None:
        self.cancelled += 1
        if call in self.held:
            self.held.remove(call)

    def _models(self, call: Call) -> LoadedModels:
        return LoadedModels(models=self.models, credits=self.credits)


def compute(batch: Execute) -> Executed:
    """What the two models of the fakes give."""
    rows = sum(batch.rows)
    predictions: list[Raw] = []
    if batch.blocks:
        decoded = [msgspec.msgpack.decode(block, type=FeatureBlock) for block in batch.blocks]
        hours = [
            hour
            for block in decoded
            for (hour,) in struct.iter_unpack("<q", block.columns[0].data)  # type: ignore[arg-type]
        ]
        values = [share for hour in hours for share in (hour / 100, 1 - hour / 100)]
        output = Tensor(name="p", datatype="FP32", shape=[rows, 2], data=packed(values))
        start = 0
        for count in batch.rows:
            part = hours[start : start + count]
            predictions.append(Raw(msgspec.msgpack.encode([predict(hour) for hour in part])))
            start += count
    else:
        values = [2 * x for x, _ in struct.iter_unpack("<2f", batch.tensors[0].data)]  # type: ignore[arg-type]
        output = Tensor(name="y", datatype="FP32", shape=[rows, 1], data=packed(values))
    received_us = now_us()
    return Executed([output], predictions, {}, received_us, now_us(), 0, 0, 1, 0, 1)


def packed(values: list[float]) -> memoryview:
    """FP32 bytes."""
    return memoryview(struct.pack(f"<{len(values)}f", *values))


def predict(hour: int) -> Prediction:
    """The prediction of a row."""
    late = hour / 100
    label = "late" if late >= 0.5 else "on_time"
    return Prediction(
        label=label,
        confidence_score=max(late, 1 - late),
        probabilities={"late": late, "on_time": 1 - late},
        action="warn" if label == "late" else "none",
    )


class Fabric(Fake):
    """A data fabric. `is_silent`: calls are kept and never answered."""

    def __init__(self, path: Path) -> None:
        super().__init__("data_fabric", path, {"features_batch": self._features})
        self.is_silent = False
        self.calls: list[FeatureBatch] = []
        self.cancelled = 0
        self.freshness_s = 10.0
        self.error: MeshError | None = None

    def _features(self, call: Call) -> Any:
        self.calls.append(call.body)
        call.on_cancel = self._cancel
        if self.is_silent:
            return DEFERRED
        if self.error is not None:
            raise self.error
        return FeatureBatchResponse(
            items=[self._item(item.rows) for item in call.body.items],
            lineage=LINEAGE,
            frozen=[],
            received_us=now_us(),
            sent_us=now_us(),
        )

    def _item(self, raw: Raw) -> FeatureBatchItem:
        hours = [row["hour"] for row in msgspec.msgpack.decode(raw)]
        error = MeshError("FEATURE_INVALID", "hour is negative").body("0" * 32)
        bad = [RefusedRow(row=row, error=error) for row, hour in enumerate(hours) if hour < 0]
        good = [hour for hour in hours if hour >= 0]
        if not good:
            return FeatureBatchItem(error=error, refused=bad)
        data = memoryview(struct.pack(f"<{len(good)}q", *good))
        column = FeatureColumn(datatype="INT64", data=data)
        block = FeatureBlock(view=VIEW_DIGEST, rows=len(good), columns=[column])
        encoded = Raw(msgspec.msgpack.encode(block))
        return FeatureBatchItem(block=encoded, refused=bad, freshness_s=self.freshness_s)

    def _cancel(self) -> None:
        self.cancelled += 1


class ControlPlane(Fake):
    """Takes receipts and refuses everything else."""

    def __init__(self, path: Path) -> None:
        super().__init__("control_plane", path, {"receipts": self._receipts})
        self.receipts: list[Receipt] = []
        self.combinations: set[str] = set()
        self.unnamed = 0
        self.error: MeshError | None = None

    def _receipts(self, call: Call) -> ReceiptsStored:
        if self.error is not None:
            raise self.error
        body: Receipts = call.body
        self.combinations |= {row.lineage.snapshot for row in body.combinations}
        received = [msgspec.msgpack.decode(raw, type=Receipt) for raw in body.receipts]
        self.unnamed += sum(row.snapshot not in self.combinations for row in received)
        self.receipts += received
        return ReceiptsStored(through=body.through, counted=len(received), duplicates=0)


VIEW_DIGEST = sha256(VIEW_SQL.encode())


class Mesh:
    """A home with the models `tiny` and `delay`, its fakes, and clients of its orchestrator."""

    def __init__(self, runtimes: int = 1) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
        self.policies: list[Policy] = []
        self.loaded: list[LoadedModel] = []
        self._stage("tiny", contract())
        self._stage("delay", delay_contract())
        self.environment = Environment.for_test("orchestrator", self.home)
        object.__setattr__(self.environment, "replicas_max", runtimes)
        run_dir = self.environment.run_dir
        self.runtimes = [
            Runtime(run_dir / f"model_runtime.{index}.sock", list(self.loaded))
            for index in range(runtimes)
        ]
        self.fabric = Fabric(run_dir / "data_fabric.sock")
        self.control_plane = ControlPlane(run_dir / "control_plane.sock")
        self.service: Orchestrator
        self.client: RpcClient

    @property
    def runtime(self) -> Runtime:
        """The first runtime."""
        return self.runtimes[0]

    def _stage(self, name: str, model: ModelContract) -> None:
        """Put a pack without weights into `models/` and publish it as version 1."""
        has_view = model.view is not UNSET
        view = PackFile(path="view.sql", bytes=len(VIEW_SQL), digest=VIEW_DIGEST)
        pack: Manifest = msgspec.structs.replace(
            manifest(model),
            weights=weights_digest([]),
            files=[view] if has_view else [],
            encoders=[ColumnEncoder(field="hour", kind="standard")] if has_view else [],
        )
        root = pack_digest(pack)
        folder = self.home / "models" / root.removeprefix("sha256:")
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_bytes(msgspec.json.encode(pack))
        if has_view:
            (folder / "view.sql").write_text(VIEW_SQL)
        _, deployment, route = published(name, "1")
        self.policies += [publish(name, root), deployment, route]
        self.loaded.append(LoadedModel(name=name, version="1", digest=root, state="ready"))

    def write_policies(self, *more: Policy) -> None:
        """The last good set that the orchestrator starts with."""
        policies = policy_set(*self.policies, *more)
        file = LastGoodFile(self.home / ".mortise" / "policy", "orchestrator", "test")
        position = Position(epoch=1, sequence=1, hash=digest(0))
        file.write_candidate(LastGood(position=position, policies=policies))
        file.adopt_candidate()

    async def statistics(self) -> dict[str, Any]:
        """What the orchestrator counts."""
        answer: Statistics = await self.client.call("statistics", {})
        return dict(answer.values)

    async def infer(self, number: float = 1.0, rows: int = 1, **options: Any) -> Any:
        """Ask `tiny`; row i holds number + i."""
        timeout_s = options.pop("timeout_s", None)
        body = tiny_request(number, rows, **options)
        return await self.client.call("infer", body, timeout_s=timeout_s)

    async def delay(self, *hours: int, **options: Any) -> Any:
        """Ask `delay` for these hours."""
        timeout_s = options.pop("timeout_s", None)
        return await self.client.call(
            "infer", delay_request(*hours, **options), timeout_s=timeout_s
        )

    async def wait_for(
        self, condition: Callable[[], bool], what: str, within_s: float = 5.0
    ) -> None:
        """Until the condition holds."""
        ends_s = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < ends_s, f"{what} did not happen within {within_s} s"
            await asyncio.sleep(0.002)

    async def conserved(self) -> dict[str, Any]:
        """The counters; asserts that every request is in exactly one of them."""
        found = await self.statistics()
        ends = ("answered", "refused", "failed", "cancelled", "in_flight")
        assert found["infer_received"] == sum(found[f"infer_{end}"] for end in ends), found
        return found


def publish(name: str, root: str) -> Policy:
    """The model policy that names a pack as version 1."""
    return ModelPolicy(
        name=name, spec=ModelSpec(versions=[PublishedVersion(version="1", digest=root)])
    )


def delay_contract() -> ModelContract:
    """The classifier on the view that the packs carry."""
    reference = ViewReference(name="departure", version="1", digest=VIEW_DIGEST)
    return msgspec.structs.replace(classifier(), view=reference)


def tiny_request(number: float, rows: int = 1, **options: Any) -> InferenceRequest:
    """Row i holds number + i."""
    data = packed([value for row in range(rows) for value in (number + row, 0.0)])
    tensor = Tensor(name="x", datatype="FP32", shape=[rows, 2], data=data)
    return InferenceRequest(model_name="tiny", inputs=[tensor], **options)


def delay_request(*hours: int, **options: Any) -> InferenceRequest:
    """One row an hour."""
    raw = Raw(msgspec.msgpack.encode([{"hour": hour} for hour in hours]))
    return InferenceRequest(model_name="delay", rows=raw, **options)


def numbers(answer: Any) -> list[float]:
    """The first output."""
    data = answer.outputs[0].data
    return list(struct.unpack(f"<{len(data) // 4}f", data))


class Failed:
    """`with failing("NAME") as failed:` expects this error; `failed.error` has it after."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: MeshError

    def __enter__(self) -> "Failed":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        assert isinstance(error, MeshError), f"{self.name} was expected, not {error!r}"
        assert error.name == self.name, str(error)
        self.error = error
        return True


failing = Failed


@contextlib.asynccontextmanager
async def serving(mesh: Mesh, *, without: tuple[str, ...] = ()) -> AsyncIterator[Mesh]:
    """The mesh up, its client connected, every version ready; all gone afterwards."""
    if not (mesh.home / ".mortise/policy/orchestrator.msgpack").exists():
        mesh.write_policies()
    fakes = [*mesh.runtimes, mesh.fabric, mesh.control_plane]
    for fake in fakes:
        if fake.service not in without:
            await fake.start()

    class Kept(Orchestrator):
        """Tells the test which object serves."""

        def __init__(self, environment: Environment) -> None:
            super().__init__(environment)
            mesh.service = self

    try:
        async with running(Kept, mesh.environment):
            mesh.client = RpcClient(
                str(mesh.environment.run_dir / "orchestrator.sock"), "orchestrator"
            )
            await mesh.client.connect(5.0)
            if "model_runtime" not in without:
                replicas = mesh.service.pipeline.dispatcher.replicas
                wanted = len(mesh.loaded) * len(mesh.runtimes)
                await mesh.wait_for(
                    lambda: sum(len(replica.ready) for replica in replicas.all) == wanted,
                    "every replica ready",
                )
            for fake, is_there in (
                ("data_fabric", lambda: mesh.service.pipeline.features.is_there),
                ("control_plane", lambda: not mesh.service._shipper.fault),
            ):
                if fake not in without:
                    await mesh.wait_for(is_there, f"the answer of the {fake}")
            yield mesh
            await mesh.client.close()
    finally:
        for fake in fakes:
            await fake.stop()
        shutil.rmtree(mesh.home)
