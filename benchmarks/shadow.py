"""What shadow traffic costs the answers: the same load with and without copies, in turns.

    python -m benchmarks.shadow [--rounds 6] [--seconds 4] [--result FILE] [--note TEXT]

A bench home with two versions of `tiny` and of `sleepy` (5 ms a batch, so that a copy in progress
is a wait that shows); everything goes to version 1, and in every other turn version 2 gets a copy
of everything. Open loop, latency from the intended send. The aim: p99 with shadow ≤ 1.05 × without;
the ratio is the median over pairs of neighbouring turns, because the machine is shared. One
replica, which is the harder case.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import msgspec

from benchmarks.serving import EXAMPLE, supervisor
from benchmarks.steady_load import SteadyLoad
from contracts.policies import SLOTS
from mortise import Client
from services.jobs.bench_packs import sleepy, tiny
from services.jobs.machine import describe_machine
from services.jobs.pack_writer import write_pack

MODELS = {"tiny": (64, 300.0), "sleepy": (1, 40.0)}
"""Numbers in a row, and requests a second."""
aim = 1.05
settle_s = 0.5


def make_home(home: Path) -> None:
    """The bench home, with a second version of each model that differs in its description."""
    shutil.copytree(EXAMPLE, home)
    policies = []
    for draft in (tiny(), sleepy()):
        name = draft.contract.name
        digests = [
            write_pack(one, home / "models")
            for one in (
                draft,
                replace(
                    draft, contract=msgspec.structs.replace(draft.contract, description="again")
                ),
            )
        ]
        policies.append(f'[[policy]]\nkind = "model"\nname = "{name}"')
        for number, digest in enumerate(digests, start=1):
            policies.append(f'[[policy.spec.versions]]\nversion = "{number}"\ndigest = "{digest}"')
        policies.append(f'[[policy]]\nkind = "deployment"\nname = "{name}"')
        policies += [f'[[policy.spec.versions]]\nversion = "{n}"' for n in (1, 2)]
        policies.append(
            f'[[policy]]\nkind = "route"\nname = "{name}"\n[policy.spec]\ndefault = "1"'
        )
    (home / "policies.toml").write_text("\n".join(policies) + "\n")


def split(name: str, *, has_shadow: bool) -> dict[str, Any]:
    """Everything to version 1, and a copy of everything to version 2 or of nothing."""
    spec: dict[str, Any] = {"key": "trace", "salt": "s", "shares": {"1": SLOTS}}
    if has_shadow:
        spec["shadow"] = {"version": "2", "slots": SLOTS}
    return {"kind": "split", "name": name, "spec": spec}


async def load(path: Path, name: str, seconds: float) -> list[float]:
    """Latencies in seconds of one turn."""
    width, rate = MODELS[name]
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, width], "data": bytes(4 * width)}
    body = {"model_name": name, "inputs": [tensor]}
    packer = msgpack.Packer()

    def frame(msgid: int, number: int) -> bytes:
        packed: bytes = packer.pack([0, msgid, "infer", [body]])
        return packed

    async with SteadyLoad(str(path), frame, rate_per_s=rate, connections=8) as steady:
        await asyncio.sleep(seconds)
    assert not steady.outcome.failed, steady.outcome.failures
    return steady.outcome.latencies_s


def measure(home: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Every model with and without, in turns."""
    run = home / ".mortise/run"
    found: dict[str, Any] = {}
    with (
        Client(socket=run / "control_plane.sock", service="control_plane") as control_plane,
        Client(socket=run / "orchestrator.sock") as orchestrator,
    ):
        for name in MODELS:
            latencies: dict[bool, list[list[float]]] = {False: [], True: []}
            before = orchestrator.call("statistics")["values"]
            for turn in range(2 * rounds):
                # The order changes from round to round: a trend of the machine cancels out.
                has_shadow = turn % 4 in (1, 2)
                policies = [split(name, has_shadow=has_shadow)]
                control_plane.call(
                    "apply", {"policies": policies, "author": "bench", "reason": "turn"}
                )
                time.sleep(settle_s)
                turn_s = asyncio.run(load(run / "orchestrator.sock", name, seconds))
                latencies[has_shadow].append(turn_s)
            after = orchestrator.call("statistics")["values"]
            found[name] = _compare(latencies, before, after)
    return found


def _compare(
    latencies: dict[bool, list[list[float]]], before: dict[str, Any], after: dict[str, Any]
) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for has_shadow, turns in latencies.items():
        together = [value for turn in turns for value in turn]
        figures["with" if has_shadow else "without"] = {
            "requests": len(together),
            **{f"p{share}_ms": round(quantile_ms(together, share), 3) for share in (50, 90, 99)},
        }
    ratios = [
        quantile_ms(one, 99) / quantile_ms(other, 99)
        for one, other in zip(latencies[True], latencies[False], strict=True)
    ]
    counts = ("shadows_answered", "shadows_failed", "shadows_dropped")
    return {
        **figures,
        "p99_ratio": round(statistics.median(ratios), 3),
        "p99_ratio_of_pairs": [round(ratio, 2) for ratio in ratios],
        **{name: after[name] - before[name] for name in counts},
    }


def quantile_ms(values: list[float], share: int) -> float:
    """The value below which `share` per cent are, in milliseconds."""
    return sorted(values)[share * len(values) // 100] * 1e3


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--note", default="")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mob", dir="/tmp"))
    try:
        make_home(folder / "home")
        supervisor(folder / "home", "start", "--detach")
        try:
            models = measure(folder / "home", options.rounds, options.seconds)
        finally:
            supervisor(folder / "home", "stop")
    finally:
        shutil.rmtree(folder)
    found = {
        "what": "open loop on one replica, with copies of every request to a shadow and without",
        "aim": {"p99_ratio": aim},
        "rounds": options.rounds,
        "seconds": options.seconds,
        "models": models,
        "machine": describe_machine(),
        "note": options.note,
    }
    print(json.dumps(found, indent=1, ensure_ascii=False))
    if options.result is not None:
        options.result.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    sys.exit(any(model["p99_ratio"] > aim for model in models.values()))


if __name__ == "__main__":
    main()
