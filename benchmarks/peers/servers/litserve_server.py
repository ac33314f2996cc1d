"""LitServe: batching, ZeroMQ queues (fast_queue), one worker; the row as base64 in JSON.

LitServe reads a body as JSON or a form only; base64 is what its own examples use for bytes. The
answer is raw.
"""

import base64
import sys
from typing import Any

import litserve
from fastapi import Response
from network import ROWS_MAX, Model, window_s


class Rows(litserve.LitAPI):
    """One of the two models."""

    def __init__(self, name: str) -> None:
        self.name = name
        size = {"max_batch_size": ROWS_MAX, "batch_timeout": window_s(name)}
        super().__init__(api_path=f"/{name}", **(size if window_s(name) else {}))

    def setup(self, device: str) -> None:
        """The weights, in the worker."""
        self.model = Model(self.name)

    def decode_request(self, request: dict[str, str]) -> bytes:
        """The row."""
        return base64.b64decode(request["row"])

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        """Rows as they are: `answer` joins them."""
        return inputs

    def predict(self, x: Any) -> Any:
        """A batch, or one row where the window is 0."""
        return self.model.answer(x) if isinstance(x, list) else self.model.answer([x])[0]

    def unbatch(self, output: list[bytes]) -> list[bytes]:
        """Rows again."""
        return output

    def encode_response(self, output: bytes) -> Response:
        """The row."""
        return Response(output, media_type="application/octet-stream")


if __name__ == "__main__":
    server = litserve.LitServer(
        [Rows("tiny"), Rows("sleepy")], accelerator="cpu", workers_per_device=1, fast_queue=True
    )
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, generate_client_file=False,
        log_level="warning", access_log=False,
    )  # fmt: skip
