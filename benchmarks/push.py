"""How long a commit that loads nothing takes until it is active everywhere.

    python -m benchmarks.push [COMMITS]

The control plane and three instances with the real follower, each on its own socket connection,
in one process on the default loop; each commit fsyncs the log, three candidate files and three
folders. Measured at the operator's client, from the call to its answer, with 10 ms between
commits. Writes benchmarks/results/push.json.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from contracts import control
from contracts.policies import BatchingPolicy, BatchingSpec
from services.control_plane.service import ControlPlane
from services.jobs.machine import describe_machine
from shared import logs
from shared.environment import Environment
from shared.lifecycle import running
from shared.policy_follower import PolicyFollower, ReportParts
from shared.rpc.client import RpcClient

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).with_name("results") / "push.json"
SERVICES = ("data_fabric", "model_runtime", "orchestrator")
WARM_UP = 20
PAUSE_S = 0.01
GOAL_MS_P95 = 50.0


def machine() -> dict[str, Any]:
    """What the figures depend on, other work on the machine included; no host name."""
    return describe_machine() | {
        "apsw": version("apsw"),
        "load_1_min_at_start": round(os.getloadavg()[0], 2),
    }


def percentile(sorted_values: list[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


async def follow(service: str, home: Path) -> PolicyFollower:
    """An instance that accepts everything, once it has the first version."""
    has_version = asyncio.Event()
    follower = PolicyFollower(
        Environment.for_test(service, home),
        check=lambda _policies: None,
        activate=lambda policies: has_version.set() if policies.version else None,
        report=lambda: ReportParts(ready=True),
    )
    await follower.start()
    await has_version.wait()
    return follower


async def measure(home: Path, commits: int) -> tuple[list[float], float, int]:
    """Milliseconds of each commit, CPU milliseconds of all four, and how many commits did not
    wait for a slow instance."""
    environment = Environment.for_test("control_plane", home)
    durations_ms: list[float] = []
    fenced, begun_cpu_s = 0, 0.0
    async with running(partial(ControlPlane, settle_s=1.0), environment):  # type: ignore[arg-type]
        followers = [await follow(service, home) for service in SERVICES]
        client = RpcClient(str(environment.run_dir / "control_plane.sock"), "control_plane")
        await client.connect(1.0)
        for number in range(WARM_UP + commits):
            if number == WARM_UP:
                begun_cpu_s = time.process_time()
            policy = BatchingPolicy(name="tiny", spec=BatchingSpec(rows_max=1 + number % 1_000))
            body = control.Apply(policies=[policy], author="benchmark", reason="measure")
            begun_s = time.perf_counter()
            applied = await client.call("apply", body)
            durations_ms.append((time.perf_counter() - begun_s) * 1_000)
            fenced += bool(applied.fenced)
            in_force = {follower.current.version for follower in followers}
            assert applied.fenced or in_force == {applied.version}
            await asyncio.sleep(PAUSE_S)
        cpu_ms = (time.process_time() - begun_cpu_s) * 1_000
        for follower in followers:
            await follower.close()
        await client.close()
    return sorted(durations_ms[WARM_UP:]), cpu_ms, fenced


def main() -> None:
    """Measure, print, write."""
    commits = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    logs.direct(lambda _line: None, service="benchmark", instance="benchmark")
    here = machine()
    folder = Path(tempfile.mkdtemp(prefix="mo", dir="/tmp"))
    home = Path(shutil.copytree(ROOT / "examples" / "bench", folder / "h"))
    durations_ms, cpu_ms, fenced = asyncio.run(measure(home, commits))
    shutil.rmtree(folder)
    result = {
        "what": "a commit that loads nothing, until active at three instances, milliseconds",
        "command": f"python -m benchmarks.push {commits}",
        "commits": commits,
        **{
            name: round(percentile(durations_ms, share), 2)
            for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        },
        "max": round(durations_ms[-1], 2),
        "cpu_per_commit": round(cpu_ms / commits, 2),
        "answered_with_a_fenced_instance": fenced,
        "goal_p95": GOAL_MS_P95,
        "machine": here,
    }
    print(json.dumps(result, indent=1))
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
