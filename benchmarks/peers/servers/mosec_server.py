"""Mosec: its own (Rust) HTTP server and dynamic batching; raw bodies by its documented hooks."""

import sys

from mosec import Runtime, Server, Worker
from network import ROWS_MAX, Model, window_s


class Rows(Worker):
    """One model process; a body is a row's bytes."""

    name = "tiny"

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(self.name)

    def deserialize(self, data: bytes) -> bytes:
        """The row's bytes themselves."""
        return data

    def serialize(self, data: bytes) -> bytes:
        """The answer's bytes themselves."""
        return data

    def forward(self, data: list[bytes]) -> list[bytes]:
        """A batch."""
        return self.model.answer(data)


class Sleepy(Rows):
    """The same with the other model."""

    name = "sleepy"


if __name__ == "__main__":
    place = sys.argv[1]
    sys.argv = [sys.argv[0], "--port", place, "--address", "127.0.0.1", "--log-level", "warning"]
    server = Server()
    routes = {}
    for kind in (Rows, Sleepy):
        wait_ms = max(1, round(window_s(kind.name) * 1e3))
        runtime = Runtime(kind, num=1, max_batch_size=ROWS_MAX, max_wait_time=wait_ms)
        routes[f"/{kind.name}"] = [runtime]
    server.register_runtime(routes)
    server.run()
