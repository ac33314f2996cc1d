"""Fairness on a model that waits (`sleepy`) and on one that computes (`hefty`, made here).

    python -m benchmarks.fairness [--seconds 10] [--note TEXT] [--out FILE]

Class 1, 50 requests a second, alone and beside a bulk of class 3 whose 64 clients keep the runtimes
full: on one replica for both; with a second replica reserved for class 1; of `hefty` then also with
the bulk's runtime under the least CPU weight, since both compute on the same cores. A tenant alone
and beside one that sends ten times as much: at a tenth of the capacity with batches of 32 rows and
of 8 (a batch in progress is not interrupted), and at four tenths of it, nearly its fair share.
Exit code 1 when an answer was wrong or missing.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.batching import CLIENTS, WARM_UP_S, apply, closed, mesh, run_traffic, save
from benchmarks.overload import SLA, faults, opened
from benchmarks.sockets import ask
from contracts.pack import Architecture, ModelContract, Provenance, TensorContract
from services.jobs.pack_writer import Draft, write_pack
from shared.pack_digests import sha256

FIRST_PER_S = 50
FLOOD_TIMES = 10
FLOODED = ((32, 0.1), (8, 0.1), (32, 0.4))
"""Rows of a batch, and what the quiet tenant sends, of the capacity."""
WIDTH, SEED = 1_536, 20130101
GOALS = {
    "high_risk_p99_ms": 47.0, "high_risk_p99_of_alone": 1.5, "bulk_of_its_own": 0.95,
    "flooded_p95_of_alone": 1.5,
}  # fmt: skip
TWO_REPLICAS = """home_version = 1
[runtime]
backend = "torch"
replicas = 2
replicas_max = 2
"""
RESERVED = {"reserved_replicas": {"1": 1}}
BULK_IDLE = {**RESERVED, "cpu_weights": {"1": 100, "2": 1, "3": 1}}
ready_s_max = 30.0


def hefty() -> Draft:
    """`x` FP32 [n, 1] → `y` = 2 · x for x ≥ 0, by way of two dense layers of WIDTH units.

    The first unit carries x through exactly; the others cost what they cost and are left out.
    """
    random = np.random.default_rng(SEED)
    inner = [random.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH for _ in range(2)]
    first, last = np.ones((WIDTH, 1), np.float32), np.zeros((1, WIDTH), np.float32)
    last[0, 0] = 2.0
    for layer in inner:
        layer[0] = 0.0
        layer[0, 0] = 1.0
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    weights: list[np.ndarray[Any, Any]] = [first, *inner, last]
    for index, weight in enumerate(weights):
        tensors[f"layers.{index}.weight"] = weight
        tensors[f"layers.{index}.bias"] = np.zeros(len(weight), np.float32)
    return Draft(
        contract=ModelContract(
            name="hefty",
            task="tensor",
            inputs=[TensorContract(name="x", datatype="FP32", shape=[-1, 1])],
            outputs=[TensorContract(name="y", datatype="FP32", shape=[-1, 1])],
            description="Doubles, after as much arithmetic as makes a batch take milliseconds.",
        ),
        architecture=Architecture(
            name="mlp", configuration={"widths": [1, WIDTH, WIDTH, WIDTH, 1]}
        ),
        provenance=Provenance(code=sha256(Path(__file__).read_bytes()), seed=SEED),
        tensors=tensors,
    )


def served(model: str, digest: str, replicas: int) -> list[dict[str, Any]]:
    """The policies that publish, deploy and route one version; digest "": it is published."""
    versions = [{"version": "1", "replicas": replicas}]
    deployed: list[dict[str, Any]] = [
        {"kind": "deployment", "name": model, "spec": {"versions": versions}},
        {"kind": "route", "name": model, "spec": {"default": "1"}},
        {**SLA, "name": model},
    ]
    if digest:
        published = {"versions": [{"version": "1", "digest": digest}]}
        deployed.insert(0, {"kind": "model", "name": model, "spec": published})
    return deployed


def priority(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A priority policy for every model."""
    return {"kind": "priority", "name": "*", "spec": dict(spec)}


def wait_for(home: Path, model: str, replicas: int) -> None:
    """Until so many replicas have it."""
    ends_s = time.monotonic() + ready_s_max
    path = home / ".mortise/run/orchestrator.sock"
    while time.monotonic() < ends_s:
        rows = ask(path, "models", {})["models"]
        if any(row["name"] == model and row["replicas"] == replicas for row in rows):
            return
        time.sleep(0.1)
    raise SystemExit(f"{model} was not ready on {replicas} replicas within {ready_s_max:g} s")


def beside_bulk(home: Path, model: str, seconds: float) -> dict[str, Any]:
    """Class 1 alone, then beside a bulk of class 3; what the bulk got and how full batches were."""
    first = opened(
        "first", FIRST_PER_S, 0.0, WARM_UP_S + seconds, risk=1, tenant="first", model=model
    )
    bulk = closed(CLIENTS, seconds, name="bulk", risk=3, tenant="bulk", model=model)
    alone = run_traffic(home, first)["first"]
    both = run_traffic(home, first, bulk)
    bulk_alone = run_traffic(home, bulk)["bulk"]
    return {
        "alone": brief(alone),
        "beside": brief(both["first"]),
        "bulk": brief(both["bulk"]),
        "bulk_alone": brief(bulk_alone),
        "high_risk_p99_ms": both["first"]["p99_ms"],
        "high_risk_p99_of_alone": round(both["first"]["p99_ms"] / alone["p99_ms"], 2),
        "bulk_of_its_own": round(both["bulk"]["rows_per_s"] / bulk_alone["rows_per_s"], 3),
    }


def flooded(home: Path, rows_max: int, share: float, seconds: float) -> dict[str, Any]:
    """A tenant at a share of what 64 clients get, alone and beside one that sends ten times as
    much."""
    apply(home, [{"kind": "batching", "name": "sleepy", "spec": {"rows_max": rows_max}}])
    peak = run_traffic(home, closed(CLIENTS, 2.0))["clients"]["rows_per_s"]
    ends_s, rate = WARM_UP_S + seconds, peak * share
    quiet = opened("quiet", rate, 0.0, ends_s, tenant="quiet")
    flood = opened("flood", FLOOD_TIMES * rate, 0.0, ends_s, tenant="flood")
    alone = run_traffic(home, quiet)["quiet"]
    both = run_traffic(home, quiet, flood)
    return {
        "peak_rows_per_s": peak,
        "alone": brief(alone),
        "beside": brief(both["quiet"]),
        "flood": brief(both["flood"]),
        "flooded_p95_of_alone": round(both["quiet"]["p95_ms"] / alone["p95_ms"], 2),
    }


def brief(found: Mapping[str, Any]) -> dict[str, Any]:
    """A group without its seconds."""
    return {name: value for name, value in found.items() if name != "seconds"}


def measure(seconds: float) -> dict[str, Any]:
    """Everything."""
    found: dict[str, Any] = {}
    with mesh("", SLA) as home:
        apply(home, served("hefty", write_pack(hefty(), home / "models"), 1))
        wait_for(home, "hefty", 1)
        for model in ("sleepy", "hefty"):
            found[f"{model}, one replica"] = beside_bulk(home, model, seconds)
        for rows_max, share in FLOODED:
            name = f"flood, batches of {rows_max}, {share:.0%} of the capacity"
            found[name] = flooded(home, rows_max, share, seconds)
    with mesh(TWO_REPLICAS, priority(RESERVED)) as home:
        digest = write_pack(hefty(), home / "models")
        apply(home, [*served("sleepy", "", 2), *served("hefty", digest, 2)])
        for model in ("sleepy", "hefty"):
            wait_for(home, model, 2)
            found[f"{model}, reserved replica"] = beside_bulk(home, model, seconds)
        apply(home, [priority(BULK_IDLE)])
        time.sleep(2.0)  # the supervisor gives the weights with its next look
        found["hefty, reserved, bulk idle"] = beside_bulk(home, "hefty", seconds)
    return found


def show(found: Mapping[str, Any]) -> None:
    """The figures for people."""
    for name, row in found.items():
        if "flood" in row:
            print(
                f"{name}: p95 {row['alone']['p95_ms']} ms alone, {row['beside']['p95_ms']} ms"
                f" beside a tenant at {FLOOD_TIMES} x; {row['flooded_p95_of_alone']} x"
            )
            continue
        print(
            f"{name}: class 1 p99 {row['alone']['p99_ms']} ms alone, {row['high_risk_p99_ms']} ms"
            f" beside a bulk of {row['bulk']['rows_per_s']} rows/s ({row['bulk_of_its_own']} of"
            f" its own); {row['high_risk_p99_of_alone']} x"
        )


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load (default 10)")
    parser.add_argument("--note", default="", help="kept with the figures")
    parser.add_argument("--out", type=Path, help="the result file")
    options = parser.parse_args()
    found = measure(options.seconds)
    show(found)
    command = f"python -m benchmarks.fairness --seconds {options.seconds:g}"
    save(options.out, {"goals": GOALS, "found": found}, command, options.note)
    return 1 if faults(found) else 0


if __name__ == "__main__":
    sys.exit(main())
