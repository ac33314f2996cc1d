"""FastAPI on uvicorn (uvloop, httptools), one worker, raw bodies, a Unix socket.

`tiny` answers in the handler itself when its window is 0: that is faster than any batching of it.
"""

import sys

import uvicorn
from batcher import Batcher
from fastapi import FastAPI, Request, Response
from network import Model, window_s

app = FastAPI()
tiny = Model("tiny")
batchers = {name: Batcher(name) for name in ("tiny", "sleepy")}
is_batched = window_s("tiny") > 0


@app.get("/ready")
async def ready() -> Response:
    """Serves."""
    return Response()


@app.post("/tiny")
async def infer_tiny(request: Request) -> Response:
    """One row."""
    body = await request.body()
    answer = await batchers["tiny"].ask(body) if is_batched else tiny.answer([body])[0]
    return Response(answer, media_type="application/octet-stream")


@app.post("/sleepy")
async def infer_sleepy(request: Request) -> Response:
    """One row."""
    answer = await batchers["sleepy"].ask(await request.body())
    return Response(answer, media_type="application/octet-stream")


if __name__ == "__main__":
    uvicorn.run(
        app, uds=sys.argv[1], loop="uvloop", http="httptools", access_log=False,
        log_level="warning", lifespan="off",
    )  # fmt: skip
