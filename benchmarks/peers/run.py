"""Mortise beside other model servers: the same models, machine, generator and run.

    python -m benchmarks.peers.run [--peers a,b] [--seconds 3] [--rounds 3] [--note T] [--no-save]
    python -m benchmarks.peers.run --sweep [--peers a,b]      tries each window, keeps the best

In each round every peer is started, asked by every load, and ended, before the next peer's turn;
of the rounds the median counts. Writes `benchmarks/results/peers.json` and, from it, the chart and
the table of `docs/benchmarks.md`. Exit code 1 when Mortise answered a request wrongly.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.floor import loop_ns
from benchmarks.generator import WARM_UP_S
from benchmarks.peers import page
from benchmarks.peers.install import missing_reasons, versions
from benchmarks.peers.processes import NotStarted, Server, generate, running
from benchmarks.peers.table import BY_NAME, PEERS, WINDOWS, WINDOWS_MS, Peer
from services.jobs.machine import describe_machine

RESULTS = Path(__file__).parents[1] / "results" / "peers.json"
LOADS = (
    ("tiny", "closed", 1),
    ("tiny", "closed", 64),
    ("tiny", "open", 1_000),
    ("sleepy", "closed", 1),
    ("sleepy", "closed", 64),
)
ROUNDS = 3
SECONDS, seconds_max = 3.0, 30.0
TIE = 0.97
"""A shorter window that reaches this share of the best throughput is the better one."""
Found = dict[str, Any]


def ask(server: Server, model: str, kind: str, amount: int, seconds: float) -> Found:
    """One load, with the processor seconds of the server per 1,000 requests."""
    before_s = server.cpu_s()
    try:
        found = generate(server, model, kind, amount, seconds)
    except subprocess.TimeoutExpired:
        return {"per_s": 0.0, "errors": 1, "error_samples": ["the load did not end in time"]}
    except subprocess.CalledProcessError as error:
        return {"per_s": 0.0, "errors": 1, "error_samples": [error.stderr[-300:]]}
    requests = found["answers"] * (seconds + WARM_UP_S) / seconds
    used_s = server.cpu_s() - before_s
    found["cpu_s_per_1000"] = round(used_s * 1e3 / requests, 4) if requests else None
    return found


def one_round(peer: Peer, seconds: float) -> dict[str, Found]:
    """Every load against one start of a peer. Raises NotStarted."""
    with running(peer) as server:
        return {
            f"{model} {kind} {amount}": ask(server, model, kind, amount, seconds)
            for model, kind, amount in LOADS
        }


def median(rounds: list[Found]) -> Found:
    """The median of each figure; errors of all rounds together."""
    merged: Found = {}
    for key in (
        "per_s",
        "p50_ms",
        "p90_ms",
        "p99_ms",
        "p99_sigma_ms",
        "cpu_s_per_1000",
        "generator_cpu_s",
    ):
        values = [found[key] for found in rounds if found.get(key) is not None]
        merged[key] = round(statistics.median(values), 4) if values else None
    merged["errors"] = sum(found["errors"] for found in rounds)
    merged["error_samples"] = [one for found in rounds for one in found["error_samples"]][:2]
    merged["rounds_per_s"] = [found["per_s"] for found in rounds]
    return merged


def compare(peers: list[Peer], rounds: int, seconds: float) -> tuple[Found, dict[str, str]]:
    """Peer → load → median, and why others are absent."""
    absent = missing_reasons(peers)
    gathered: dict[str, dict[str, list[Found]]] = {}
    for number in range(rounds):
        for peer in peers:
            if peer.name in absent:
                continue
            print(f"round {number + 1} of {rounds}: {peer.title}", file=sys.stderr, flush=True)
            try:
                for load, found in one_round(peer, seconds).items():
                    gathered.setdefault(peer.name, {}).setdefault(load, []).append(found)
            except NotStarted as error:
                absent[peer.name] = str(error)
    merged = {
        name: {load: median(found) for load, found in loads.items()}
        for name, loads in gathered.items()
    }
    return merged, absent


def sweep(peers: list[Peer], seconds: float) -> None:
    """Throughput at 64 clients with every window; the best are kept in `windows.json`."""
    kept = json.loads(WINDOWS.read_text())
    for peer in peers:
        if peer.name == "mortise":
            continue
        reached: dict[str, dict[float, float]] = {"tiny": {}, "sleepy": {}}
        for window_ms in WINDOWS_MS:
            try:
                with running(peer, {"tiny": window_ms, "sleepy": window_ms}) as server:
                    for model, row in reached.items():
                        found = ask(server, model, "closed", 64, seconds)
                        row[window_ms] = found["per_s"] if not found["errors"] else 0.0
            except NotStarted as error:
                print(f"{peer.name}: {error}")
                break
        if all(reached.values()):
            chosen = {model: best(row) for model, row in reached.items()}
            kept[peer.name] = {"best": chosen, "per_s": reached}
            print(f"{peer.name}: {kept[peer.name]}", flush=True)
            WINDOWS.write_text(json.dumps(kept, indent=1) + "\n")


def best(reached: dict[float, float]) -> float:
    """The shortest window within a few per cent of the highest throughput."""
    enough = max(reached.values()) * TIE
    return min(window_ms for window_ms, per_s in reached.items() if per_s >= enough)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=",".join(peer.name for peer in PEERS))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--note", default="")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--no-save", action="store_true")
    given = parser.parse_args()
    if not 0 < given.seconds <= seconds_max:
        parser.error(f"--seconds is {given.seconds:g}, at most {seconds_max:g}")
    unknown = set(given.peers.split(",")) - set(BY_NAME)
    if unknown:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}")
    return given


def main() -> int:
    """Run, print, save what is a whole run."""
    given = arguments()
    peers = [BY_NAME[name] for name in given.peers.split(",")]
    if given.sweep:
        sweep(peers, given.seconds)
        return 0
    loads, absent = compare(peers, given.rounds, given.seconds)
    result = {
        "what": "infer of `tiny` and `sleepy`, one row a request, by the servers of the table",
        "command": f"python -m benchmarks.peers.run --seconds {given.seconds:g}",
        "peers": [
            {
                "name": peer.name,
                "title": peer.title,
                "how": peer.how,
                "transport": f"{peer.protocol}, {peer.socket} socket",
                "windows_ms": peer.windows_ms,
                "versions": versions(peer),
                "loads": loads.get(peer.name, {}),
                "absent": absent.get(peer.name, ""),
            }
            for peer in peers
        ],
        "rounds": given.rounds,
        "seconds": given.seconds,
        "python_loop_ns": loop_ns(),
        "machine": describe_machine(),
        "note": given.note,
    }
    print(page.table(result))
    if {peer.name for peer in peers} != set(BY_NAME):
        print("a part of the peers: shown, not saved")
    elif not given.no_save:
        RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        page.refresh(result)
    own = loads.get("mortise", {})
    return 1 if any(found["errors"] for found in own.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
