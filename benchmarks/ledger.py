"""How fast receipts are kept and how long `trace` takes beside them.

    python -m benchmarks.ledger [RECEIPTS]

Receipts arrive over the socket as an orchestrator under load ships them, 512 a call; then random
traces are asked, quiet and while further receipts arrive. Writes benchmarks/results/ledger.json.
"""

import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.push import machine, percentile
from contracts import control
from contracts.lineage import NOTHING, AiVersion, Combination, Lineage, Receipt, snapshot_digest
from contracts.types import Empty
from services.control_plane.service import ControlPlane
from services.orchestrator.config import ship_receipts_max
from shared import logs
from shared.environment import Environment
from shared.lifecycle import running
from shared.rpc.client import RpcClient

RESULT = Path(__file__).with_name("results") / "ledger.json"
RECEIPTS_PER_CALL = ship_receipts_max
TRACES = 2_000
GOAL_MS = 50.0
DIGEST = "sha256:" + "a" * 64
VERSION = AiVersion(data=NOTHING, model=DIGEST, infra=DIGEST, policy=DIGEST)
COMBINATION = Combination(
    lineage=Lineage(snapshot=snapshot_digest(VERSION), weights=DIGEST, infra=DIGEST, policy=DIGEST),
    version=VERSION,
    model_name="delay",
    model_version="1",
    policy_version=1,
)


def trace_id(number: int) -> str:
    """Spread over the index as real ones are."""
    return f"{random.Random(number).getrandbits(128):032x}"


def receipt(number: int) -> msgspec.Raw:
    """As large as a real one."""
    hops = [(f"{name}.0-0123abcd", 120, 4_800) for name in ("orchestrator", "data_fabric", "model")]
    one = Receipt(
        "default", f"request-{number:012d}", trace_id(number), 1_700_000_000_000_000 + number,
        "ok", "delay", "1", 1, COMBINATION.lineage.snapshot, "default", False, [], 2, 1_000, 1, 0,
        0, 350, 5_000, [100] * 8, hops, "UA",
    )  # fmt: skip
    return msgspec.Raw(msgspec.msgpack.encode(one))


def shipments(first: int, count: int) -> list[control.Receipts]:
    """What an orchestrator sends, made before it is timed."""
    return [
        control.Receipts(
            spool="benchmark",
            through=start + RECEIPTS_PER_CALL,
            receipts=[receipt(number) for number in range(start, start + RECEIPTS_PER_CALL)],
            combinations=[COMBINATION],
        )
        for start in range(first, first + count, RECEIPTS_PER_CALL)
    ]


async def ship(client: RpcClient, bodies: list[control.Receipts]) -> None:
    """One call after another."""
    for body in bodies:
        await client.call("receipts", body, timeout_s=30.0)


async def ask(client: RpcClient, known: int) -> list[float]:
    """Milliseconds of random traces, one after another."""
    durations_ms = []
    for _ in range(TRACES):
        body = control.TraceRequest(trace_id=trace_id(random.randrange(known)))
        begun_s = time.perf_counter()
        await client.call("trace", body)
        durations_ms.append((time.perf_counter() - begun_s) * 1_000)
    return sorted(durations_ms)


def figures(durations_ms: list[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    shares = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
    return {name: round(percentile(durations_ms, share), 2) for name, share in shares}


async def measure(home: Path, count: int) -> dict[str, object]:
    """Fill, ask, ask again beside writes."""
    environment = Environment.for_test("control_plane", home)
    async with running(ControlPlane, environment):
        client = RpcClient(str(environment.run_dir / "control_plane.sock"), "control_plane")
        await client.connect(1.0)
        writer = RpcClient(client.path, "control_plane")
        await writer.connect(1.0)
        first, second = shipments(0, count), shipments(count, count)
        begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
        await ship(writer, first)
        filled_s, filled_cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
        quiet = await ask(client, count)
        shipping = asyncio.ensure_future(ship(writer, second))
        busy = await ask(client, count)
        shipping.cancel()
        status = await client.call("status", Empty())
        assert status.receipts >= count
        await client.close()
        await writer.close()
    file = home / ".mortise" / "ledger.db"
    return {
        "receipts": count,
        "receipts_per_s": round(count / filled_s),
        "cpu_us_per_receipt": round(filled_cpu_s / count * 1e6, 1),
        "bytes_per_receipt": round(file.stat().st_size / status.receipts),
        "trace_ms": figures(quiet),
        "trace_ms_beside_writes": figures(busy),
    }


def main() -> None:
    """Measure, print, write."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    logs.direct(lambda _line: None, service="benchmark", instance="benchmark")
    here = machine()
    home = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    measured = asyncio.run(measure(home, count))
    shutil.rmtree(home)
    result = {
        "what": "receipts kept and traces found over the control plane's socket, caller and control"
        " plane in one process",
        "command": f"python -m benchmarks.ledger {count}",
        **measured,
        "goal_trace_ms": GOAL_MS,
        "machine": here,
    }
    print(json.dumps(result, indent=1))
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
