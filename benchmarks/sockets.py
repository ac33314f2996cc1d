"""One question to a service's socket, for benchmarks that look inside: raw MessagePack-RPC."""

import socket
from pathlib import Path
from typing import Any

import msgpack

ask_s_max = 20.0


def ask(path: Path, method: str, body: dict[str, Any]) -> dict[str, Any]:
    """The result of one call. Ends the benchmark when the call fails."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(ask_s_max)
        sock.connect(str(path))
        sock.sendall(msgpack.packb([0, 1, method, [body]]))
        unpacker = msgpack.Unpacker(max_buffer_size=2**26)
        while True:
            chunk = sock.recv(65_536)
            if not chunk:
                raise SystemExit(f"{path.name} hung up on {method}")
            unpacker.feed(chunk)
            for message in unpacker:
                if message[0] != 1:
                    continue
                if message[2] is not None:
                    raise SystemExit(f"{method}: {message[2]['name']}: {message[2]['message']}")
                result: dict[str, Any] = message[3]
                return result


def share_within(path: Path, name: str, bound_s: float) -> float:
    """The share of a histogram's observations that lie within one of its bounds; 1 of none."""
    for family in ask(path, "metrics", {})["metrics"]:
        if family["name"] == name and family["series"]:
            rows = [series["counts"] for series in family["series"]]
            counts = [sum(column) for column in zip(*rows, strict=True)]
            within = family["buckets"].index(bound_s) + 1
            return float(sum(counts[:within]) / max(1, sum(counts)))
    return 1.0


def metric_sum(path: Path, name: str) -> float:
    """The sum of a histogram, over all of its label sets."""
    families = ask(path, "metrics", {})["metrics"]
    every = [family["series"] for family in families if family["name"] == name]
    return sum(float(series["value"]) for rows in every for series in rows)
