"""Calls `infer` with aio-msgpack-rpc: `python aio_msgpack_rpc_client.py SOCKET`."""

import asyncio
import json
import sys
from typing import Any

import aio_msgpack_rpc
from aio_msgpack_rpc.error import RPCResponseError

INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 64], "data": bytes(256)}
BODY = {"model_name": "tiny", "inputs": [INPUT]}


async def error_of(client: Any, body: dict[str, Any]) -> Any:
    """The error of a call that fails."""
    try:
        await client.call("infer", body)
    except RPCResponseError as error:
        return error.args[0]
    raise AssertionError("it was answered")


async def main(path: str) -> None:
    """As the other clients."""
    client = aio_msgpack_rpc.Client(*await asyncio.open_unix_connection(path), response_timeout=30)
    answered = await client.call("infer", BODY)
    unknown = await error_of(client, {**BODY, "model_name": "unknown"})
    invalid = await error_of(client, {**BODY, "mode": 1})
    await client.notify("unheard_of", 1)
    pipelined = await asyncio.gather(*(client.call("infer", BODY) for _ in range(20)))
    seen = {
        "model_name": answered["model_name"],
        "output": answered["outputs"][0]["name"],
        "is_binary": isinstance(answered["outputs"][0]["data"], bytes),
        "unknown": unknown,
        "invalid": invalid,
        "pipelined": len(pipelined),
    }
    print(json.dumps(seen))
    client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
