"""A server process whose `infer` does what the model's name says; it measures its own stalls.

`python -m tests.integration.wire.toy_orchestrator SOCKET [CONNECTIONS_MAX]`; says "ready", drains
on SIGTERM.
"""

import asyncio
import gc
import signal
import sys
import time
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from contracts.errors import MeshError
from contracts.inference import InferenceResponse, Models, StreamItem, Tensor
from contracts.limits import connections_max_default
from contracts.samples import sample
from contracts.service import Health, Metrics, Statistics
from shared import compiled
from shared.access import Access
from shared.rpc.server import DEFERRED, Call, Handler, Server

INSTANCE = "orchestrator.0-0123abcd"
TICK_S = 0.001
DRAIN_S = 2.0
STREAM_ITEMS = 20_000


class StallMeter:
    """The longest that the loop's thread computed without giving a timer its turn.

    Counted in CPU time of the thread, so that a busy machine does not look like a stall.
    """

    def __init__(self) -> None:
        self.cpu_s_max = 0.0
        self._last_s = time.thread_time()

    def start(self) -> None:
        """Tick from now on."""
        now_s = time.thread_time()
        self.cpu_s_max = max(self.cpu_s_max, now_s - self._last_s)
        self._last_s = now_s
        asyncio.get_running_loop().call_later(TICK_S, self.start)


def rss_bytes() -> int:
    """Resident memory of this process."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


@lru_cache(maxsize=1)
def complete() -> InferenceResponse:
    """An answer with every field; taking a sample costs milliseconds, so it is taken once."""
    answer: InferenceResponse = msgspec.convert(
        sample(InferenceResponse), InferenceResponse, builtin_types=(bytes, memoryview)
    )
    return answer


def response(call: Call, outputs: list[Tensor]) -> InferenceResponse:
    """A complete answer to this call."""
    return msgspec.structs.replace(
        complete(), trace_id=call.trace_id, model_name=call.body.model_name, outputs=outputs
    )


def infer(call: Call) -> Any:
    """Behave as the model's name says."""
    name = call.body.model_name
    if name == "unknown":
        raise MeshError("MODEL_UNKNOWN", "no model `unknown`", details={"model": "unknown"})
    if name == "never":
        return DEFERRED
    if name == "later":
        asyncio.get_running_loop().call_later(0.05, call.reply, response(call, []))
        return DEFERRED
    if name == "stream":
        stream(call)
        return DEFERRED
    if name == "large":
        data = memoryview(bytes(4_000_000))
        return response(call, [Tensor(name="y", datatype="UINT8", shape=[4_000_000], data=data)])
    return response(call, call.body.inputs or [])


def stream(call: Call) -> None:
    """Send items as fast as the reader takes them; end after `STREAM_ITEMS`."""
    item = StreamItem(index=0, token_ids=[1], text="x" * 100)
    while call.sequence < STREAM_ITEMS:
        if not call.stream(item):
            call.on_resume = partial(stream, call)
            return
    call.reply(response(call, []))


def handlers(server: list[Server], meter: StallMeter) -> dict[str, Handler]:
    """The orchestrator's methods."""

    def statistics(_: Call) -> Statistics:
        measured = {"stall_ms": meter.cpu_s_max * 1e3, "rss_bytes": rss_bytes()}
        meter.cpu_s_max = 0.0
        return Statistics(
            values={**server[0].statistics(), **measured, "compiled": compiled.is_in_use()}
        )

    def health(_: Call) -> Health:
        return Health(
            live=True,
            ready=True,
            degraded=False,
            reasons=[],
            policy_version=0,
            uptime_s=0.0,
            service="orchestrator",
            instance=INSTANCE,
        )

    async def models(_: Call) -> Models:
        return Models(models=[])

    return {
        "infer": infer,
        "models": models,
        "health": health,
        "statistics": statistics,
        "metrics": lambda _: Metrics(metrics=[]),
    }


async def serve(path: str, connections_max: int) -> None:
    """Until SIGTERM."""
    meter = StallMeter()
    server: list[Server] = []
    server.append(
        Server(
            "orchestrator",
            handlers(server, meter),
            instance=INSTANCE,
            access=Access.owner(),
            connections_max=connections_max,
        )
    )
    await server[0].start_path(path)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    complete()
    gc.collect()
    gc.freeze()
    meter.start()
    print("ready", flush=True)
    await stopped.wait()
    await server[0].drain(DRAIN_S)


if __name__ == "__main__":
    cap = int(sys.argv[2]) if len(sys.argv) > 2 else connections_max_default
    uvloop.run(serve(sys.argv[1], cap))
