"""The load of one peer, in a process of its own: the loops of `benchmarks/generator.py`, with raw
MessagePack, HTTP/1.1 or HTTP/2 clients that know what they must get.

    python -m benchmarks.peers.generator TARGET closed|open AMOUNT SECONDS

TARGET is a JSON object: protocol, socket ("unix" or "tcp"), place, model, path, weights, and for
protocols with an envelope `wrap`. Prints one JSON object.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.generator import Client, Dial, Load, closed, opened, row_of, summary
from benchmarks.peers.envelopes import ENVELOPES
from benchmarks.peers.h2_client import H2Client
from benchmarks.peers.http_client import HttpClient, Pool, request_of
from benchmarks.peers.truth import Truth

HTTP_CONNECTIONS = 64
"""Of the open loop; as many as the closed loop has clients. HTTP/1.1 has one request in flight on
each; the others have sixteen connections and any number."""


def dialler(target: dict[str, Any]) -> Dial:
    """How a client of this target connects."""
    truth, model = Truth(Path(target["weights"])), target["model"]
    wrap = ENVELOPES[target["envelope"]]
    pool = Pool()

    def client(load: Load, seed: int) -> asyncio.Protocol:
        row, expected = row_of(seed, model), truth.of(seed, model)
        if target["protocol"] == "msgpack":
            return Client(load, seed, model, expected)
        sent = wrap(model, row)
        if target["protocol"] == "grpc":
            return H2Client(load, target["path"], sent.body, expected)
        request = request_of(target["path"], sent.headers, sent.body)
        return HttpClient(load, pool, request, expected, sent.read)

    async def dial(load: Load, seed: int) -> Any:
        loop = asyncio.get_running_loop()
        if target["socket"] == "unix":
            _, made = await loop.create_unix_connection(lambda: client(load, seed), target["place"])
        else:
            _, made = await loop.create_connection(
                lambda: client(load, seed), "127.0.0.1", int(target["place"])
            )
        return made

    return dial


def main() -> None:
    """Run one load and print its summary."""
    target, kind, amount, seconds = json.loads(sys.argv[1]), *sys.argv[2:4], float(sys.argv[4])
    dial = dialler(target)
    if kind == "closed":
        work = closed(dial, int(amount), seconds)
    elif target["protocol"] == "http":
        work = opened(dial, int(amount), seconds, HTTP_CONNECTIONS)
    else:
        work = opened(dial, int(amount), seconds)
    load = asyncio.Runner(loop_factory=uvloop.new_event_loop).run(work)
    print(json.dumps(summary(load, seconds)))


if __name__ == "__main__":
    main()
