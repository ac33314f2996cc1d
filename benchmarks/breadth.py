"""Does a request cost more when there are many models, tenants or connections?

    python -m benchmarks.breadth [--count 10000] [--models 1000] [--seconds 4] [--no-save]

One home with as many copies of `tiny` as `--models`, each a model of its own. The same generator
asks one model for one tenant over one connection per request in flight, then in turn for
`--count` tenants, over `--count` connections, and of every model; one request in flight, so that
batches are the same. Printed is the processor time of orchestrator and runtime per request as a
multiple of that of the plain load just before it, the median of three such pairs. Writes
`benchmarks/results/breadth.json`.
"""

import argparse
import asyncio
import json
import math
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks.generator import Client, Load, Template, dial_mesh, summary
from benchmarks.serving import EXAMPLE, ROOT, cpu_s, pids, supervisor
from services.jobs.bench_packs import tiny
from services.jobs.machine import describe_machine
from services.jobs.pack_writer import write_pack

RESULTS = ROOT / "benchmarks" / "results" / "breadth.json"
GOAL_RATIO = 1.2
FILES_MORE = 500
MEASURED = ("orchestrator", "model_runtime")
ROUNDS = 3
WARM_IN_FLIGHT = 32
SETTLE_STEP_S, QUIET, settle_s_max = 2.0, 0.1, 60.0
"""Settled: a process uses less than a tenth of a core."""
load_extra_s_max = 60.0


class InTurn(Load):
    """One request in flight; every next one has the next template and the next connection.

    First each of them is used once, with more in flight: a first use is no request's usual cost.
    """

    def __init__(self, clients: int, templates: list[Template]) -> None:
        super().__init__()
        self.clients: list[Client] = []
        self.is_warm = asyncio.Event()
        self._warm_msgid = max(clients, len(templates))
        self._in_flight = 0
        self._templates = templates

    def start(self) -> None:
        """Begin to use every client and template once."""
        self._in_flight = WARM_IN_FLIGHT
        for _ in range(WARM_IN_FLIGHT):
            self._send()

    def answered(self, client: Any) -> None:
        """The next request of the next client."""
        if self.is_over:
            return
        if self.next_msgid >= self._warm_msgid and self._in_flight > 1:
            self._in_flight -= 1
            return
        if self._in_flight == 1 and not self.is_warm.is_set():
            self.is_warm.set()
        self._send()

    def _send(self) -> None:
        msgid = self.take(time.monotonic())
        chosen = self.clients[msgid % len(self.clients)]
        chosen.template = self._templates[msgid % len(self._templates)]
        chosen.send(msgid)


async def in_turn(
    given: argparse.Namespace, templates: list[Template], processes: dict[str, int]
) -> dict[str, Any]:
    """The load over so many connections, and what the processes used for a request meanwhile."""
    load, dial = InTurn(given.connections, templates), dial_mesh(given.load)
    for _ in range(given.connections):
        load.clients.append(await dial(load, 0))
    load.began_s = math.inf
    load.start()
    async with asyncio.timeout(load_extra_s_max):
        await load.is_warm.wait()
    load.began_s, first = time.monotonic(), load.next_msgid
    before = {name: cpu_s(pid) for name, pid in processes.items()}
    await asyncio.sleep(given.seconds)
    requests = max(1, load.next_msgid - first)
    used = {name: cpu_s(pid) - before[name] for name, pid in processes.items()}
    load.is_over = True
    cost = {name: round(spent_s * 1e6 / requests, 1) for name, spent_s in used.items()}
    return {**summary(load, given.seconds), "cpu_us_per_request": cost}


def generate(given: argparse.Namespace) -> None:
    """The generator's process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, given.connections + FILES_MORE), most))
    names = [model_name(number) for number in range(given.models)]
    count = max(given.tenants, given.models)
    templates = [
        Template(0, name=names[number % len(names)], tenant=f"t{number % given.tenants}")
        for number in range(count)
    ]
    work = in_turn(given, templates, json.loads(given.processes))
    print(json.dumps(asyncio.Runner(loop_factory=uvloop.new_event_loop).run(work)))


def model_name(number: int) -> str:
    """The name of the copy `number`."""
    return f"tiny_{number}"


def make_home(home: Path, models: int) -> None:
    """The bench home with copies of `tiny`, each published, deployed and routed."""
    shutil.copytree(EXAMPLE, home)
    lines = []
    for number in range(models):
        name, draft = model_name(number), tiny()
        contract = msgspec.structs.replace(draft.contract, name=name)
        digest = write_pack(replace(draft, contract=contract), home / "models")
        lines.append(
            f'[[policy]]\nkind = "model"\nname = "{name}"\n[[policy.spec.versions]]\n'
            f'version = "1"\ndigest = "{digest}"\n'
            f'[[policy]]\nkind = "deployment"\nname = "{name}"\n[[policy.spec.versions]]\n'
            f'version = "1"\n'
            f'[[policy]]\nkind = "route"\nname = "{name}"\n[policy.spec]\ndefault = "1"\n'
        )
    (home / "policies.toml").write_text("\n".join(lines))


def ask(home: Path, seconds: float, **widths: int) -> dict[str, Any]:
    """One load, and the processor time of orchestrator and runtime per request."""
    words = [f"--{name}={width}" for name, width in widths.items()]
    path = str(home / ".mortise/run/orchestrator.sock")
    measured = {name: pid for name, pid in pids(home).items() if name in MEASURED}
    words += [f"--seconds={seconds}", f"--processes={json.dumps(measured)}"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.breadth", "--load", path, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds + 2 * load_extra_s_max,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cost_us(found: dict[str, Any]) -> float:
    """Processor time of orchestrator and runtime per request."""
    return float(sum(found["cpu_us_per_request"].values()))


def used_s(home: Path) -> dict[str, float]:
    """Processor time so far of the processes that are measured."""
    return {name: cpu_s(pid) for name, pid in pids(home).items() if name in MEASURED}


def settle(home: Path) -> None:
    """Wait until what follows a start (loading, first policies) is over."""
    ends_s = time.monotonic() + settle_s_max
    while time.monotonic() < ends_s:
        before = used_s(home)
        time.sleep(SETTLE_STEP_S)
        if all(
            now_s - before[name] < SETTLE_STEP_S * QUIET for name, now_s in used_s(home).items()
        ):
            return


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Each width beside the plain load, one after the other."""
    folder = Path(tempfile.mkdtemp(prefix="mob", dir="/tmp"))
    home, plain = folder / "home", {"models": 1, "tenants": 1, "connections": 1}
    rows: dict[str, Any] = {}
    try:
        make_home(home, given.models)
        supervisor(home, "start", "--detach")
        try:
            settle(home)
            widths = {"tenants": given.count, "connections": given.count, "models": given.models}
            for what, width in widths.items():
                pairs = [
                    (
                        ask(home, given.seconds, **plain),
                        ask(home, given.seconds, **{**plain, what: width}),
                    )
                    for _ in range(given.rounds)
                ]
                ratio = statistics.median(cost_us(many) / cost_us(one) for one, many in pairs)
                rows[what] = {"width": width, "ratio": round(ratio, 3), "pairs": pairs}
                print(f"{width} {what}: {ratio:.2f} × the cost of one", flush=True)
        finally:
            supervisor(home, "stop")
    finally:
        shutil.rmtree(folder)
    return rows


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--models", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tenants", type=int, default=1)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--note", default="")
    parser.add_argument("--no-save", action="store_true")
    parser.add_argument("--load", default="", help=argparse.SUPPRESS)
    parser.add_argument("--processes", default="{}", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        generate(given)
        return 0
    rows = measure(given)
    if not given.no_save:
        result = {
            "what": "cost of a request among many tenants, connections and models",
            "command": f"python -m benchmarks.breadth --seconds {given.seconds:g}",
            "goal_ratio": GOAL_RATIO,
            "rows": rows,
            "machine": describe_machine(),
            "note": given.note,
        }
        RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    loads = [load for row in rows.values() for pair in row["pairs"] for load in pair]
    failed = any(load["errors"] for load in loads)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
