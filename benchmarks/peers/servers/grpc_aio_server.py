"""grpc.aio with hand-written batching, on a Unix socket; the messages are the raw rows.

Generic handlers without (de)serialisers: what protobuf would add is left out in the peer's favour.
"""

import asyncio
import sys

import grpc
import uvloop
from batcher import Batcher
from network import Model, window_s


async def serve(place: str) -> None:
    """Until it is killed."""
    tiny, batchers = Model("tiny"), {name: Batcher(name) for name in ("tiny", "sleepy")}
    is_batched = window_s("tiny") > 0

    async def infer_tiny(body: bytes, _: grpc.aio.ServicerContext) -> bytes:
        return await batchers["tiny"].ask(body) if is_batched else tiny.answer([body])[0]

    async def infer_sleepy(body: bytes, _: grpc.aio.ServicerContext) -> bytes:
        return await batchers["sleepy"].ask(body)

    server = grpc.aio.server()
    handlers = {
        "tiny": grpc.unary_unary_rpc_method_handler(infer_tiny),
        "sleepy": grpc.unary_unary_rpc_method_handler(infer_sleepy),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Peer", handlers),))
    server.add_insecure_port(f"unix:{place}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(serve(sys.argv[1]))
