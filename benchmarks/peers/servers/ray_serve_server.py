"""Ray Serve: its HTTP proxy, one replica a model, @serve.batch; raw bodies."""

import os
import signal
import sys

import ray
from network import ROWS_MAX, Model, window_s
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


class Rows:
    """One of the two models."""

    def __init__(self, name: str, wait_s: float) -> None:
        self.model = Model(name)
        self.is_batched = wait_s > 0
        self.many.set_batch_wait_timeout_s(wait_s)

    @serve.batch(max_batch_size=ROWS_MAX)
    async def many(self, bodies: list[bytes]) -> list[bytes]:
        """A batch."""
        return self.model.answer(bodies)

    async def __call__(self, request: Request) -> Response:
        """One row."""
        body = await request.body()
        answer = await self.many(body) if self.is_batched else self.model.answer([body])[0]
        return Response(answer, media_type="application/octet-stream")


if __name__ == "__main__":
    ray.init(
        num_cpus=4, include_dashboard=False, object_store_memory=100 * 2**20, _temp_dir=os.getcwd(),
        log_to_driver=False, configure_logging=True, logging_level="error",
    )  # fmt: skip
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(sys.argv[1])},
        logging_config={"enable_access_log": False},
    )
    for name in ("tiny", "sleepy"):
        deployment = serve.deployment(Rows).options(
            name=name, max_ongoing_requests=256, num_replicas=1,
            logging_config={"enable_access_log": False},
        )  # fmt: skip
        serve.run(deployment.bind(name, window_s(name)), name=name, route_prefix=f"/{name}")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
