"""MLServer: gRPC of the Open Inference Protocol with raw contents, adaptive batching, in-process.

`parallel_workers` is 0: the hop to a pool of processes costs a small model more than it brings.
"""

import asyncio
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from mlserver import MLModel
from mlserver.cli.main import root
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from network import ROWS_MAX, Model, window_s

_thread = ThreadPoolExecutor(1)


class Rows(MLModel):
    """One of the two models, by its name."""

    async def load(self) -> bool:
        """The weights."""
        self.model = Model(self.name)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """A batch that MLServer has put together."""
        rows = torch.from_numpy(NumpyCodec.decode_input(payload.inputs[0]))
        if self.name == "tiny":
            found = self.model.forward(rows)
        else:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(_thread, self.model.forward, rows)
        output = NumpyCodec.encode_output("y", found.numpy())
        return InferenceResponse(model_name=self.name, outputs=[output])


def write_settings(folder: Path, port: int) -> None:
    """What `mlserver start` reads."""
    settings = {
        "host": "127.0.0.1", "grpc_port": port, "http_port": port + 1, "metrics_endpoint": None,
        "parallel_workers": 0, "debug": False, "use_structured_logging": False,
    }  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(settings))
    for name in ("tiny", "sleepy"):
        (folder / name).mkdir()
        model = {"name": name, "implementation": "mlserver_server.Rows"}
        if window_s(name):
            model |= {"max_batch_size": ROWS_MAX, "max_batch_time": window_s(name)}
        (folder / name / "model-settings.json").write_text(json.dumps(model))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="mop") as given:
        write_settings(Path(given), int(sys.argv[1]))
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        root(["start", given])
